"""Semantic memory (tier 4): what is remembered by an owner, and what a search says about it.

A **record** is one text of an owner. Texts that are the same once case, spacing and closing signs are set aside are one
record, which then has several **sources**: the places where it was said. A record is hidden when all its sources belong
to turns that are hidden (rewound), so a rewind takes back what it must and nothing else.

Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from milepost.domain.embeddings import EmbeddingSpace

FACT = "fact"
"""The kind of a record that states something on its own; only facts are compared for saying nearly the same."""

MAX_TEXT_BYTES = 1024 * 1024
MAX_QUERY_BYTES = 64 * 1024
MAX_ENTRIES = 1000
"""Entries of one call of `add`."""
MAX_RESULTS = 100
MAX_CAPTIONS = 20
MAX_SUPERSEDED = 100


class EmbeddingState(StrEnum):
    """Whether a record has its vector. `pending` and `failed` ones are found by their words only, and are retried."""

    PENDING = "pending"
    EMBEDDED = "embedded"
    FAILED = "failed"


class AddOutcome(StrEnum):
    """What became of an entry.

    `known`: an entry of this id was added before. `duplicate`: the text was there already and has one source more.
    `near_duplicate`: a fact that was kept and says the same as one before it, which it replaces as the current one.
    `forgotten`: an entry of this id was forgotten; it does not come back.
    """

    STORED = "stored"
    KNOWN = "known"
    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near_duplicate"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """Something to remember.

    Attributes:
        id: unique within the owner; adding the same id again changes nothing.
        text: what is given back by a search, up to 1 MiB of UTF-8.
        at: when it was said.
        kind: `request`, `answer`, `fact`, or another word of lowercase letters and `_`.
        turn_id, turn_number, effect_id: where it comes from; empty (0) for what a person added by hand.
        speaker: who said it; part of the indexed text, like the date and the captions.
        captions: descriptions of what was attached.
        supersedes: ids of entries or records that this one corrects; they are outranked from now on.
    """

    id: str
    text: str
    kind: str
    at: int
    turn_id: str = ""
    turn_number: int = 0
    effect_id: str = ""
    speaker: str = ""
    captions: tuple[str, ...] = ()
    supersedes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Added:
    """`record_id` is the record that holds the text now; for a forgotten entry the one that held it."""

    entry_id: str
    record_id: str
    outcome: AddOutcome
    embedding: EmbeddingState


@dataclass(frozen=True, slots=True)
class Source:
    """Where a record was said."""

    entry_id: str
    at: int
    turn_id: str
    turn_number: int
    effect_id: str


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A record as it is kept. Of several sources `at` is the time of the newest.

    Attributes:
        position: place in the owner's order of records, from 1; never reused.
        superseded_by: the record that corrects this one or says the same later, None for a current one.
        embedding_error: why there is no vector, for a failed one.
    """

    id: str
    position: int
    text: str
    kind: str
    at: int
    speaker: str
    captions: tuple[str, ...]
    sources: tuple[Source, ...]
    supersedes: tuple[str, ...]
    superseded_by: str | None
    embedding: EmbeddingState
    embedding_error: str | None


@dataclass(frozen=True, slots=True)
class ReindexStep:
    """What a part of a reindex did. `after` is where the next one begins; `records` is how many there are in all."""

    embedded: int
    records: int
    after: int
    finished: bool
    space: EmbeddingSpace


@dataclass(frozen=True, slots=True)
class SemanticStats:
    """Counts of an owner's semantic memory.

    Attributes:
        entries: what was added, without what was forgotten.
        records: texts kept.
        current: records that nothing supersedes.
        near_duplicates: records superseded because a later one says the same.
        forgotten: records that were forgotten.
        space: what made the vectors; None before the first one.
        bytes: size of the store, 0 where it is not known.
    """

    entries: int
    records: int
    current: int
    near_duplicates: int
    pending: int
    failed: int
    forgotten: int
    space: EmbeddingSpace | None
    bytes: int

    @property
    def duplicate_rate(self) -> int:
        """Millionths of the entries that said what was known: the same text, or nearly the same."""
        said_again = self.entries - self.records + self.near_duplicates
        return 1_000_000 * said_again // self.entries if self.entries else 0
