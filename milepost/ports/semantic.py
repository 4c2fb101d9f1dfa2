"""The port of semantic memory (tier 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from milepost.domain.memory import DEFAULT_MIN_SCORE, Recall, Scope
from milepost.domain.semantic import Added, MemoryEntry, MemoryRecord, ReindexStep, SemanticStats

Progress = Callable[[int, int], None]
"""Called with (done, total) now and then, from the event loop."""


class SemanticMemory(Protocol):
    """Tier 4. Works away from the event loop; several processes may use the memory of one owner at once.

    Every method may raise MemoryUnavailable when the store does not answer, and InvalidInput for what is over the
    bounds of `domain.semantic`.
    """

    async def add(self, scope: Scope, entries: Sequence[MemoryEntry]) -> list[Added]:
        """Keep the entries, in order; what this says was kept is on disk.

        A failure to embed is no error here: the record's state tells, and later calls try again.
        """
        ...

    async def search(
        self,
        scope: Scope,
        query: str,
        *,
        limit: int = 5,
        min_score: int = DEFAULT_MIN_SCORE,
        exclude_turns: frozenset[str] = frozenset(),
        shown_turns: frozenset[str] = frozenset(),
    ) -> Recall:
        """The records that fit the query best.

        Args:
            limit: at most 100.
            min_score: records below it are left out.
            exclude_turns: turns that count as if they had not been (rewound ones): records that were said nowhere
                else are neither found nor supersede anything.
            shown_turns: turns the reader sees anyway: records said there are left out, and still supersede.

        Raises:
            EmbeddingMismatch: the vectors were made by another embedder; the fix is the command that makes them anew.
        """
        ...

    async def forget(self, scope: Scope, ids: Sequence[str], by: str) -> list[str]:
        """Erase records (by record or entry id) for good; return the ids of the records that are gone now.

        Texts and vectors are overwritten. What remains is that something was forgotten, when and by whom, so that
        entries of the same ids do not come back.
        """
        ...

    async def entries_of(self, scope: Scope, ids: Sequence[str]) -> list[str]:
        """Ids of all entries of the records that these ids (of records or entries) name, at most 1,000.

        What was said in several places is a record with several entries. Ids of nothing are passed over.
        """
        ...

    async def get(self, scope: Scope, record_id: str) -> MemoryRecord:
        """Raises RecordNotFound."""
        ...

    async def page(
        self,
        scope: Scope,
        *,
        before: int | None = None,
        limit: int = 100,
        exclude_turns: frozenset[str] = frozenset(),
        current: bool = False,
    ) -> list[MemoryRecord]:
        """Records, newest first, at most 1,000.

        Args:
            before: `position` of the last record of the page before.
            exclude_turns: as in `search`.
            current: leave out what is superseded.
        """
        ...

    async def stats(self, scope: Scope) -> SemanticStats: ...

    async def reindex_step(self, scope: Scope, *, after: int = 0, seconds: float = 5.0) -> ReindexStep:
        """Make vectors anew for about `seconds`; call it with the `after` of the step before until it is finished.

        Vectors of another embedder are kept beside the old ones, which searches go on with until the step that finds
        all records embedded. So a cut loses nothing: what was made is found by the next step, wherever it begins.

        Raises EmbeddingFailed.
        """
        ...

    async def reindex(self, scope: Scope, progress: Progress | None = None) -> SemanticStats:
        """All steps of a reindex. Raises EmbeddingFailed."""
        ...

    async def delete(self, scope: Scope) -> None:
        """Remove the owner's whole memory. Idempotent."""
        ...

    async def close(self) -> None:
        """Release files and threads."""
        ...
