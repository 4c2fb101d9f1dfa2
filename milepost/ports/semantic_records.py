"""The records that semantic memory is made of: the truth from which indexes in memory are built.

A body is a plain function that gets the records of one owner and does short database work, as with the ledger. Every
change of a record has a number; numbers rise in the order of commits, so that a reader who asks for what came after
the last number it knows misses nothing, whichever process wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.memory import Scope
from milepost.domain.semantic import Added, EmbeddingState, MemoryEntry, MemoryRecord, SemanticStats

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Head:
    """State of an owner's memory.

    Attributes:
        changes: number of the last change, 0 for an empty memory.
        generation: rises when what a reader has read before is worth nothing any more.
        space: what made the vectors; None before the first one.
    """

    changes: int
    generation: int
    space: EmbeddingSpace | None


@dataclass(frozen=True, slots=True)
class PreparedEntry:
    """An entry with what is computed of it outside of the transaction.

    Attributes:
        identity: equal for texts that are stored once.
        terms: tokens of the indexed text, separated by spaces.
    """

    entry: MemoryEntry
    identity: str
    terms: str


@dataclass(frozen=True, slots=True)
class Mention:
    """A source as an index needs it: its turn (empty: none) and the number of the change that brought it."""

    turn_id: str
    change: int


@dataclass(frozen=True, slots=True)
class Link:
    """`newer` supersedes the record that has this link, unless that one was said again after change `change`."""

    newer: str
    change: int
    near: bool


@dataclass(frozen=True, slots=True)
class IndexRow:
    """What an index needs of a record. `vectors` are those of the space that is searched."""

    id: str
    change: int
    position: int
    at: int
    fact: bool
    asks: bool
    terms: str
    embedding: EmbeddingState
    vectors: tuple[bytes, ...]
    mentions: tuple[Mention, ...]
    superseded: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """A page of records. `last` is where to go on, a change or a position; `more`: there is a next page."""

    head: Head
    rows: tuple[IndexRow, ...]
    forgotten: tuple[str, ...]
    last: int
    more: bool


@dataclass(frozen=True, slots=True)
class Unembedded:
    """A record that has no vector, with what must be embedded. `attempts` counts those that failed."""

    id: str
    position: int
    text: str
    kind: str
    at: int
    speaker: str
    captions: tuple[str, ...]
    attempts: int


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of a record's passages, and records that say nearly the same and are superseded by it."""

    id: str
    vectors: tuple[bytes, ...]
    same_as: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as if nothing were hidden or superseded, and what decides on that.

    Attributes:
        said: numbers of the changes that brought its sources, in their order.
    """

    record: MemoryRecord
    said: tuple[int, ...]
    superseded: tuple[Link, ...]


class SemanticRecords(Protocol):
    """The records of one owner within a transaction."""

    def head(self) -> Head: ...

    def put(self, entries: Sequence[PreparedEntry]) -> list[Added]:
        """Insert what is new, in order, as `pending`; see `AddOutcome` for what is not new."""

    def scan(self, after: int, limit: int) -> Changes:
        """Records behind position `after`, in order of position, for an index that has none yet."""

    def changes(self, after: int, limit: int) -> Changes:
        """Records that changed after the change `after`, and ids of what was forgotten since."""

    def unembedded(self, now: int, limit: int) -> list[Unembedded]:
        """Records without a vector whose time to try (again) has come, oldest first."""

    def store(self, space: EmbeddingSpace, done: Sequence[Embedded]) -> None:
        """Keep vectors; those of records that were forgotten meanwhile are dropped.

        The first vectors of a memory decide on its space. Those of another space wait for `switch`.
        """

    def fail(self, ids: Sequence[str], error: str, now: int) -> None:
        """Note that embedding failed; it is tried again later and later, at most an hour apart."""

    def missing(self, space: EmbeddingSpace | None, after: int, limit: int) -> list[Unembedded]:
        """Records behind position `after` that have no vector of this space (None: all), in order."""

    def switch(self, space: EmbeddingSpace) -> bool:
        """Make a space the one that is searched and drop the vectors of all others; not while one has none in it."""

    def forget(self, ids: Sequence[str], by: str, at: int) -> list[str]: ...

    def entries_of(self, ids: Sequence[str], limit: int) -> list[str]:
        """As in the port of semantic memory; those that were asked for come first."""

    def states(self, ids: Sequence[str]) -> dict[str, EmbeddingState]:
        """States of records by id; those that are not there are left out."""

    def read(self, ids: Sequence[str]) -> list[StoredRecord]:
        """Records by id, in no order; those that are not there are left out."""

    def page(self, before: int | None, limit: int) -> list[StoredRecord]:
        """Newest first."""

    def stats(self) -> SemanticStats: ...

    def clear(self) -> None:
        """Delete everything, also what was noted of forgotten records."""


class SemanticStore(Protocol):
    """Runs bodies over the records of an owner, away from the event loop. Raises MemoryUnavailable, MemoryDamaged."""

    async def write(self, scope: Scope, body: Callable[[SemanticRecords], T], *, erases: bool = False) -> T:
        """Run and commit. `erases`: what the body deletes must not be left in the files."""
        ...

    async def read(self, scope: Scope, body: Callable[[SemanticRecords], T]) -> T | None:
        """Run a body that only reads; None if nothing was ever written for the owner."""
        ...

    async def size(self, scope: Scope) -> int:
        """Bytes the owner's records take; 0 if that is not known."""
        ...

    async def close(self) -> None: ...
