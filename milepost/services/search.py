"""Search across Sessions, or within one."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass

from milepost.domain.errors import InvalidInput, PayloadTooLarge
from milepost.domain.search import Found, SearchFilter, WordQuery
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import canonical_bytes, decode_event, parse
from milepost.ledger.search import (
    Fragment,
    literal_places,
    parse_query,
    search_texts,
    snippet,
    word_places,
)
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.batches import bounded_batch
from milepost.services.contents import text_bytes
from milepost.services.sessions import MAX_PAGE

MAX_QUERY_BYTES = 64 * 1024
MAX_OFFSET = 10_000
FIRST_ROWS = 200
MAX_ROWS = 4_000
MAX_SCANNED = 20_000
"""Texts one page of a literal search looks at; the next page goes on from there."""

EVERYWHERE = SearchFilter()
BATCH_EVENTS = 1_000
BATCH_BYTES = 4 * 1024 * 1024
SESSIONS = 200


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """`literal` looks for the exact string instead of its words. `cursor` is that of the page before."""

    query: str
    where: SearchFilter = EVERYWHERE
    literal: bool = False
    cursor: str | None = None
    limit: int = 20


@dataclass(frozen=True, slots=True)
class Hit:
    """A text that matches, with the best part of it."""

    found: Found
    session_title: str
    agent: str
    snippet: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class SearchPage:
    """`complete` is False while the index is being rebuilt. A literal page may be short, or empty, and not the last."""

    hits: tuple[Hit, ...]
    next_cursor: str | None
    literal: bool
    complete: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild of the index is."""

    sessions: int
    events: int


class SearchService:
    """Reads the index, and the events it points to."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def search(self, request: SearchRequest) -> SearchPage:
        """One page of hits. Any query is accepted: one that has no word in it is looked for literally.

        Raises:
            PayloadTooLarge: over 64 KiB.
            InvalidInput: a cursor of no page.
            SessionNotFound: the filter names a Session that does not exist.
        """
        if len(text_bytes(request.query)) > MAX_QUERY_BYTES:
            raise PayloadTooLarge.of("search", "query", len(text_bytes(request.query)), MAX_QUERY_BYTES)
        query = None if request.literal else parse_query(request.query)
        if query is None:
            return await self._literal(request)
        offset = _offset(request.cursor)
        limit = max(1, min(request.limit, MAX_PAGE))

        def body(tx: LedgerTx) -> tuple[list[_Raw], bool]:
            _check_session(tx, request.where)
            found = tx.search.find(query, request.where, offset=offset, limit=limit + 1)
            return [_raw(tx, item) for item in found], tx.search.complete()

        found, complete = await self._ledger.read(body)
        more = len(found) > limit and offset + limit < MAX_OFFSET
        hits = await asyncio.to_thread(_word_hits, found[:limit], query)
        return SearchPage(tuple(hits), _cursor([offset + limit]) if more else None, False, complete)

    async def _literal(self, request: SearchRequest) -> SearchPage:
        before = _place(request.cursor)
        needle = request.query
        if not (needle if request.literal else needle.strip()):
            return SearchPage((), None, True, await self._ledger.read(lambda tx: _complete(tx, request.where)))
        encoded = canonical_bytes(needle)[1:-1]
        limit = max(1, min(request.limit, MAX_PAGE))
        hits: list[Hit] = []
        scanned, rows = 0, FIRST_ROWS
        while True:
            look = _Look(encoded, request.where, before, rows, limit - len(hits))
            found, before, complete = await self._ledger.read(look.body)
            scanned, rows = scanned + rows, min(4 * rows, MAX_ROWS)
            hits += await asyncio.to_thread(_literal_hits, found, needle)
            if before is None or len(hits) >= limit or scanned >= MAX_SCANNED:
                return SearchPage(tuple(hits), None if before is None else _cursor(list(before)), True, complete)

    async def rebuild(self, tell: Callable[[Progress], None]) -> Progress:
        """Make the index anew from all events; what is appended meanwhile is in it too. `tell` is called now and then.

        Until it is done a search finds only a part, and says so; a rebuild that was cut short is begun again.

        Raises StorageUnavailable.
        """
        await self._ledger.write(lambda tx: tx.search.clear())
        sessions = events = 0
        before: str | None = None
        while True:
            page = await self._ledger.read(
                lambda tx, last=before: tx.sessions.page(status=None, before=last, limit=SESSIONS)  # type: ignore[misc]
            )
            for session in page:
                after: int | None = 0
                while after is not None:
                    after, count = await self._rebuild_batch(session.session_id, after)
                    events += count
                    tell(Progress(sessions, events))
                sessions += 1
            if len(page) < SESSIONS:
                break
            before = page[-1].session_id
        await self._ledger.write(lambda tx: tx.search.set_complete())
        return Progress(sessions, events)

    async def _rebuild_batch(self, session_id: str, after: int) -> tuple[int | None, int]:
        """Index some events after `after`; where to go on (None: at the end), and how many there were."""

        def read(last: StoredEvent | None, limit: int, tx: LedgerTx) -> list[StoredEvent]:
            return tx.events.read(session_id, after=after if last is None else last.seq, limit=limit)

        stored, more = await self._ledger.read(
            lambda tx: bounded_batch(
                lambda last, limit: read(last, limit, tx),
                lambda item: len(item.payload),
                count=BATCH_EVENTS,
                max_bytes=BATCH_BYTES,
            )
        )
        if not stored:
            return None, 0
        decoded = await asyncio.to_thread(
            lambda: [
                (item.seq, item.at, item.turn_id, decode_event(item.type, item.version, item.payload))
                for item in stored
            ]
        )
        await self._ledger.write(lambda tx: tx.search.add(session_id, decoded))
        return (stored[-1].seq if more else None), len(stored)


@dataclass(frozen=True, slots=True)
class _Look:
    """One step of a literal search."""

    needle: bytes
    where: SearchFilter
    before: tuple[int, int] | None
    rows: int
    limit: int

    def body(self, tx: LedgerTx) -> tuple[list[_Raw], tuple[int, int] | None, bool]:
        """The candidates, where to go on, and whether the index is complete."""
        _check_session(tx, self.where)
        found, after = tx.search.scan(self.needle, self.where, before=self.before, rows=self.rows, limit=self.limit)
        return [_raw(tx, item) for item in found], after, tx.search.complete()


@dataclass(frozen=True, slots=True)
class _Raw:
    found: Found
    title: str
    event: StoredEvent


def _raw(tx: LedgerTx, found: Found) -> _Raw:
    (event,) = tx.events.read(found.session_id, after=found.seq - 1, limit=1)
    return _Raw(found, tx.sessions.get(found.session_id).title, event)


def _check_session(tx: LedgerTx, where: SearchFilter) -> None:
    if where.session_id is not None:
        tx.sessions.get(where.session_id)


def _complete(tx: LedgerTx, where: SearchFilter) -> bool:
    _check_session(tx, where)
    return tx.search.complete()


def _word_hits(found: list[_Raw], query: WordQuery) -> list[Hit]:
    hits = []
    for raw in found:
        agent, text = _text_of(raw)
        text = text[raw.found.start : raw.found.end]
        hits.append(Hit(raw.found, raw.title, agent, tuple(snippet(text, word_places(text, query)))))
    return hits


def _literal_hits(found: list[_Raw], needle: str) -> list[Hit]:
    """Those of the candidates that have the string in the text itself, not elsewhere in the event."""
    hits = []
    for raw in found:
        agent, text = _text_of(raw)
        places = literal_places(text, needle)
        if places:
            hits.append(Hit(raw.found, raw.title, agent, tuple(snippet(text, places))))
    return hits


def _text_of(raw: _Raw) -> tuple[str, str]:
    event = decode_event(raw.event.type, raw.event.version, raw.event.payload)
    for item in search_texts(event):
        if item.kind is raw.found.kind and item.part == raw.found.part:
            return item.agent, item.text
    return "", ""


def _cursor(values: list[int]) -> str:
    return base64.urlsafe_b64encode(canonical_bytes(values)).decode().rstrip("=")


def _values(cursor: str | None, count: int) -> list[int] | None:
    if cursor is None:
        return None
    try:
        values = parse(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, UnicodeError):
        values = None
    if not (isinstance(values, list) and len(values) == count and all(type(value) is int for value in values)):
        raise InvalidInput("The cursor is of no page.", field="cursor", fix="Begin without a cursor.")
    if any(not 0 <= value < 2**62 for value in values):
        raise InvalidInput("The cursor is of no page.", field="cursor", fix="Begin without a cursor.")
    return values


def _offset(cursor: str | None) -> int:
    values = _values(cursor, 1)
    return 0 if values is None else min(values[0], MAX_OFFSET)


def _place(cursor: str | None) -> tuple[int, int] | None:
    values = _values(cursor, 2)
    return None if values is None else (values[0], values[1])
