"""The port of long-term memory's stores, and what a Python package that brings one has to provide.

A store keeps records, gives them back, and tells in which order they changed. Scores, filters, expiry at reading and
the checks of entries are the caller's, so they are the same with every store. A package announces its store under the
entry-point group `milepost.memory_stores`; the entry point names an `OpenStore`. It needs to import nothing of Milepost
but this module. `tests/memory/store_conformance.py` holds what every store must do.

Times are microseconds since the epoch, UTC. Keys and namespaces are texts of 1 to 512 bytes of UTF-8 without NUL;
they are compared and sorted by code point.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import StorageUnavailable, VersionConflict

STORES_GROUP = "milepost.memory_stores"

MAX_BATCH = 500
"""Records that one call may write, read or list."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector as it was written. `checksum` is the CRC-32 of `data`; the store neither makes nor checks it."""

    space: EmbeddingSpace
    data: bytes
    checksum: int


@dataclass(frozen=True, slots=True)
class Write:
    """A record to write; it replaces the one with this key.

    `document` and `facts` are opaque to the store. `expected` is the version that must be there now: 0 for none, None
    for whatever there is. A record whose time is over at `at` counts as none, but its versions are counted on. A write
    whose `effect_id` is that of the record that is there has been made already.
    """

    key: str
    document: bytes
    facts: bytes
    at: int
    expires_at: int | None
    by: str
    run_id: str | None = None
    effect_id: str | None = None
    expected: int | None = None
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A record. `change` is its place in the namespace's order of changes. `embedded`: it has a vector of the
    namespace's space."""

    key: str
    version: int
    change: int
    document: bytes
    facts: bytes
    created_at: int
    updated_at: int
    expires_at: int | None
    by: str
    run_id: str | None
    effect_id: str | None
    embedded: bool


@dataclass(frozen=True, slots=True)
class Change:
    """The newest change of a key: what is there now (`facts`, with its vector if it has one), or that it was deleted
    (None)."""

    change: int
    key: str
    expires_at: int | None
    facts: bytes | None
    vector: Vector | None


@dataclass(frozen=True, slots=True)
class Namespace:
    """`changes` is the number of the last change, from 1. `forgotten`: deletions up to this change may be unknown to
    `changes`. `records` may count expired ones."""

    name: str
    space: EmbeddingSpace | None
    changes: int
    forgotten: int
    records: int
    created_at: int


class LongTermStore(Protocol):
    """Every method may raise StorageUnavailable. What was written is durable when the call returns.

    Calls come from one event loop, several at a time; other processes may use the same data meanwhile.
    """

    async def namespaces(self, after: str, limit: int) -> list[Namespace]:
        """In order of their names, after a name ("" begins)."""

    async def namespace(self, name: str) -> Namespace | None: ...

    async def get(self, namespace: str, keys: Sequence[str]) -> dict[str, Stored]:
        """The records that there are, expired ones too. At most `MAX_BATCH` keys."""

    async def page(self, namespace: str, after: str, limit: int) -> list[Stored]:
        """Records in order of their keys, after a key ("" begins), expired ones too."""

    async def put(self, namespace: str, writes: Sequence[Write]) -> list[Stored]:
        """Write all or none; keys are distinct. Makes the namespace.

        The first vector gives the namespace its space. A vector of another space is left out: the record is then one
        without a vector.

        Raises VersionConflict: a record is not of the expected version.
        """

    async def delete(self, namespace: str, key: str, expected: int | None, at: int) -> bool:
        """Whether there was a record. A key that is written again later goes on counting versions.

        Raises VersionConflict.
        """

    async def changes(self, namespace: str, after: int, limit: int) -> list[Change]:
        """The newest change of each key that changed after change `after`, in order.

        Vectors are of the namespace's space.
        """

    async def vectors(self, namespace: str, keys: Sequence[str]) -> dict[str, Vector]:
        """The vectors of records in the namespace's space. At most `MAX_BATCH` keys."""

    async def put_vectors(self, namespace: str, vectors: Sequence[tuple[str, int, Vector]]) -> int:
        """Keep vectors of records that are still at the given change; returns how many.

        In the namespace's space, or in one without a space, they count at once, and each is a change of its record.
        In another space they are kept beside until `switch`, and change nothing.
        """

    async def lacking(self, namespace: str, space: EmbeddingSpace, after: str, limit: int) -> list[Stored]:
        """Records without a current vector of a space, in order of their keys, after a key."""

    async def switch(self, namespace: str, space: EmbeddingSpace, changes: int) -> bool:
        """Make a space the namespace's own, if its last change still is `changes`; returns whether it is now."""

    async def drop_others(self, namespace: str, limit: int) -> int:
        """Delete at most `limit` vectors of other spaces than the namespace's; returns how many."""

    async def expired(self, now: int, limit: int) -> list[tuple[str, str]]:
        """Namespaces and keys of records whose time is over (expires_at <= now)."""

    async def forget(self, before: int, limit: int) -> int:
        """Take away what is left of at most `limit` records that were deleted before a time; returns how many."""

    async def close(self) -> None: ...


OpenStore = Callable[[Mapping[str, Any], Path], Awaitable[LongTermStore]]
"""(settings of the configuration, a folder that the store alone may use) -> an open store."""

__all__ = [
    "MAX_BATCH",
    "STORES_GROUP",
    "Change",
    "EmbeddingSpace",
    "LongTermStore",
    "Namespace",
    "OpenStore",
    "StorageUnavailable",
    "Stored",
    "Vector",
    "VersionConflict",
    "Write",
]
