"""What goes into the records of semantic memory, and how records look to whoever reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from milepost.domain.errors import InvalidInput, PayloadTooLarge
from milepost.domain.memory import MILLIONTHS, Recalled
from milepost.domain.semantic import (
    MAX_CAPTIONS,
    MAX_ENTRIES,
    MAX_QUERY_BYTES,
    MAX_RESULTS,
    MAX_SUPERSEDED,
    MAX_TEXT_BYTES,
    MemoryEntry,
    MemoryRecord,
    Source,
)
from milepost.engine.recall import identity, terms_of
from milepost.memory.recall_index import Hit
from milepost.ports.semantic_records import PreparedEntry, StoredRecord

_KIND = re.compile("[a-z][a-z_]{0,39}")


def check_entries(entries: Sequence[MemoryEntry]) -> None:
    """Raises InvalidInput, PayloadTooLarge: an entry is over a bound."""
    if len(entries) > MAX_ENTRIES:
        raise InvalidInput(f"At most {MAX_ENTRIES} entries can be added at once.", field="entries")
    for entry in entries:
        if not entry.id:
            raise InvalidInput("An entry needs an id.", field="id")
        if not entry.text.strip():
            raise InvalidInput("There is nothing to remember: the text is empty.", field="text")
        size = len(entry.text.encode("utf-8", "surrogatepass"))
        if size > MAX_TEXT_BYTES:
            raise PayloadTooLarge.of("Memory", "text", size, MAX_TEXT_BYTES)
        if not _KIND.fullmatch(entry.kind):
            raise InvalidInput(
                f"{entry.kind[:60]!r} is no kind of a record.", field="kind", fix="Use lowercase letters and '_'."
            )
        if len(entry.captions) > MAX_CAPTIONS or len(entry.supersedes) > MAX_SUPERSEDED:
            raise InvalidInput(
                f"An entry has at most {MAX_CAPTIONS} captions and supersedes at most {MAX_SUPERSEDED} records.",
                field="captions" if len(entry.captions) > MAX_CAPTIONS else "supersedes",
            )


def check_query(query: str, limit: int) -> None:
    """Raises InvalidInput, PayloadTooLarge."""
    size = len(query.encode("utf-8", "surrogatepass"))
    if size > MAX_QUERY_BYTES:
        raise PayloadTooLarge.of("Memory", "query", size, MAX_QUERY_BYTES)
    if not 1 <= limit <= MAX_RESULTS:
        raise InvalidInput(f"A search gives 1 to {MAX_RESULTS} records.", field="limit")


def prepared(entry: MemoryEntry) -> PreparedEntry:
    """The entry with what is computed of it."""
    terms = terms_of(entry.text, at=entry.at, speaker=entry.speaker, captions=entry.captions)
    return PreparedEntry(entry, identity(entry.speaker, entry.text), terms)


def last_said(item: StoredRecord, exclude: Collection[str]) -> int:
    """Number of the change that brought the record's last visible source; 0 if all are hidden."""
    pairs = zip(item.record.sources, item.said, strict=True)
    return max((change for source, change in pairs if source.turn_id not in exclude), default=0)


def visible(item: StoredRecord, exclude: Collection[str], others: Collection[str]) -> MemoryRecord:
    """The record without what the excluded turns said of it. `others`: visible records, which may supersede it."""
    said = last_said(item, exclude)
    sources = tuple(source for source in item.record.sources if source.turn_id not in exclude)
    newer = [link.newer for link in item.superseded if link.change > said and link.newer in others]
    at = max((source.at for source in sources), default=item.record.at)
    return replace(item.record, sources=sources, at=at, superseded_by=newer[-1] if newer else None)


def recalled(hit: Hit, item: StoredRecord, exclude: Collection[str]) -> Recalled:
    """A hit with its text and the newest place where it was said."""
    record = visible(item, exclude, ())
    place = max(record.sources, key=lambda source: source.at) if record.sources else Source("", record.at, "", 0, "")
    return Recalled(
        id=record.id,
        text=record.text,
        score=hit.score,
        turn_id=place.turn_id,
        turn_number=place.turn_number,
        at=place.at,
        kind=record.kind,
        speaker=record.speaker,
        parts={"words": hit.words, "meaning": hit.meaning, "context": hit.context},
        reason=_reason(hit, record, place),
    )


def _reason(hit: Hit, record: MemoryRecord, place: Source) -> str:
    parts = {_whose_words(hit): hit.words, "its meaning": hit.meaning, "what was said around it": hit.context}
    why = [f"{name} ({part / MILLIONTHS:.2f})" for name, part in sorted(parts.items(), key=_largest) if part >= 5000]
    who = f" by {record.speaker}" if record.speaker else ""
    where = f" in turn {place.turn_number}" if place.turn_number else ""
    day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=place.at)).strftime("%Y-%m-%d")
    through = "; it replaces an older record that fits" if hit.through else ""
    return f"Score {hit.score / MILLIONTHS:.2f}: {', '.join(why)}; said{who}{where} on {day}{through}."


def _whose_words(hit: Hit) -> str:
    """The words of neighbors count for a record too, so it may have none of the query itself."""
    if not hit.own_words:
        return "words of the records beside it"
    return "its words and those of the records beside it" if hit.beside_words else "its words"


def _largest(item: tuple[str, int]) -> int:
    return -item[1]
