"""Semantic memory (tier 4): records in a store, searched through indexes that live in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from milepost.domain.errors import EmbeddingFailed, EmbeddingMismatch, InvalidInput, RecordNotFound
from milepost.domain.memory import DEFAULT_MIN_SCORE, Recall, Scope
from milepost.domain.semantic import (
    MAX_ENTRIES,
    Added,
    AddOutcome,
    MemoryEntry,
    MemoryRecord,
    ReindexStep,
    SemanticStats,
)
from milepost.engine.lexical import tokens
from milepost.memory.recall_index import Query, RecallIndex
from milepost.memory.recall_indexes import MAX_INDEXES, MAX_ROWS, Indexes
from milepost.memory.semantic_embedding import BATCH, RecordEmbedding, now_us
from milepost.memory.semantic_views import check_entries, check_query, last_said, prepared, recalled, visible
from milepost.ports.embeddings import Embedder
from milepost.ports.semantic import Progress
from milepost.ports.semantic_records import SemanticRecords, SemanticStore, StoredRecord

RETRIES: Final = 64
"""Older records without a vector that one call of `add` tries again."""
RETRY_SECONDS: Final = 1.0


class IndexedMemory:
    """`ports.semantic.SemanticMemory` over any store of records; belongs to the event loop that uses it."""

    def __init__(
        self,
        store: SemanticStore,
        embedder: Embedder,
        *,
        clock: Callable[[], int] = now_us,
        max_indexes: int = MAX_INDEXES,
        max_rows: int = MAX_ROWS,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._clock = clock
        self._indexes = Indexes(store, max_indexes=max_indexes, max_rows=max_rows)
        self._retries: dict[str, asyncio.Task[set[str]]] = {}
        self._embedding = RecordEmbedding(store, embedder, self._indexes, clock)

    async def add(self, scope: Scope, entries: Sequence[MemoryEntry]) -> list[Added]:
        if not entries:
            return []
        check_entries(entries)
        ready = await asyncio.to_thread(lambda: [prepared(entry) for entry in entries])
        added = await self._store.write(scope, lambda records: records.put(ready))
        same = await self._embedding.waiting(scope, len(entries) + RETRIES)
        ids = [item.record_id for item in added]
        states = await self._store.read(scope, lambda records: records.states(ids)) or {}
        return [
            replace(
                item,
                embedding=states.get(item.record_id, item.embedding),
                outcome=AddOutcome.NEAR_DUPLICATE
                if item.outcome is AddOutcome.STORED and item.record_id in same
                else item.outcome,
            )
            for item in added
        ]

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
        check_query(query, limit)
        index = await self._indexes.get(scope)
        self._require_space(scope, index)
        vector, problem = None, ""
        if self._embedder.neural and len(index) and query.strip():
            try:
                [vector] = await self._embedder.embed([query])
            except EmbeddingFailed as error:
                problem = f"Only words were compared: {error.message}"
        if index.incomplete and not problem:
            await self._retry(scope)
            index = await self._indexes.get(scope)
        hits = await asyncio.to_thread(
            lambda: index.search(Query(tuple(tokens(query)), vector, limit, min_score, exclude_turns, shown_turns))
        )
        found = {item.record.id: item for item in await self._read(scope, [hit.id for hit in hits.items])}
        items = tuple(recalled(hit, found[hit.id], exclude_turns) for hit in hits.items if hit.id in found)
        return Recall(items, hits.incomplete, hits.searched, problem)

    async def _retry(self, scope: Scope) -> None:
        """Embed some of what waits for it; a search waits for that a second and leaves the rest behind it."""
        task = self._retries.get(scope.component)
        if task is None:
            task = asyncio.create_task(self._embedding.waiting(scope, BATCH))
            self._retries[scope.component] = task
            task.add_done_callback(lambda done: self._retried(scope, done))
        await asyncio.wait({task}, timeout=RETRY_SECONDS)

    def _retried(self, scope: Scope, task: asyncio.Task[set[str]]) -> None:
        self._retries.pop(scope.component, None)
        if not task.cancelled():
            task.exception()  # retrieved; what failed is noted with its records, or is tried again by the next call

    def _require_space(self, scope: Scope, index: RecallIndex) -> None:
        if index.space is not None and index.space != self._embedder.space:
            raise EmbeddingMismatch(
                f"The memory of {scope.owner} has vectors of {index.space}; a search would use {self._embedder.space}.",
                fix=f"Make its vectors anew: milepost memory reindex-records {scope.session_id} --agent {scope.owner}",
            )

    async def forget(self, scope: Scope, ids: Sequence[str], by: str) -> list[str]:
        if len(ids) > MAX_ENTRIES:
            raise InvalidInput(f"At most {MAX_ENTRIES} records can be forgotten at once.", field="ids")
        if not await self._store.read(scope, lambda records: records.head().changes):
            return []
        now = self._clock()
        return await self._store.write(scope, lambda records: records.forget(ids, by, now), erases=True)

    async def entries_of(self, scope: Scope, ids: Sequence[str]) -> list[str]:
        return await self._store.read(scope, lambda records: records.entries_of(ids, MAX_ENTRIES)) or []

    async def get(self, scope: Scope, record_id: str) -> MemoryRecord:
        found = await self._shown(scope, await self._read(scope, [record_id]), frozenset())
        if not found:
            raise RecordNotFound(f"{scope.owner} remembers no record {record_id[:100]!r}.", field="record_id")
        return found[0]

    async def page(
        self,
        scope: Scope,
        *,
        before: int | None = None,
        limit: int = 100,
        exclude_turns: frozenset[str] = frozenset(),
        current: bool = False,
    ) -> list[MemoryRecord]:
        if not 1 <= limit <= MAX_ENTRIES:
            raise InvalidInput(f"A page has 1 to {MAX_ENTRIES} records.", field="limit")
        kept: list[MemoryRecord] = []
        size = max(limit, 50)
        more = True
        while more and len(kept) < limit:
            found = await self._store.read(scope, _page(before, size)) or []
            shown = await self._shown(scope, found, exclude_turns)
            kept += [record for record in shown if not (current and record.superseded_by)]
            more = len(found) == size
            before = found[-1].record.position if found else before
        return kept[:limit]

    async def _shown(self, scope: Scope, found: Sequence[StoredRecord], exclude: frozenset[str]) -> list[MemoryRecord]:
        """Records as they are without the excluded turns; those that are hidden are left out."""
        newer = sorted({link.newer for item in found for link in item.superseded})
        others = {item.record.id for item in await self._read(scope, newer) if last_said(item, exclude)}
        return [visible(item, exclude, others) for item in found if last_said(item, exclude)]

    async def _read(self, scope: Scope, ids: Sequence[str]) -> list[StoredRecord]:
        return (await self._store.read(scope, lambda records: records.read(ids)) or []) if ids else []

    async def stats(self, scope: Scope) -> SemanticStats:
        found = await self._store.read(scope, lambda records: records.stats())
        if found is None:
            return SemanticStats(0, 0, 0, 0, 0, 0, 0, None, 0)
        return replace(found, bytes=await self._store.size(scope))

    async def reindex(self, scope: Scope, progress: Progress | None = None) -> SemanticStats:
        done, step = 0, await self.reindex_step(scope, seconds=0)
        while True:
            done += step.embedded
            if progress is not None and step.embedded:
                progress(min(done, step.records), step.records)
            if step.finished:
                return await self.stats(scope)
            step = await self.reindex_step(scope, after=step.after, seconds=0)

    async def reindex_step(self, scope: Scope, *, after: int = 0, seconds: float = 5.0) -> ReindexStep:
        embedded, after, finished = await self._embedding.again(scope, after, seconds)
        return ReindexStep(embedded, (await self.stats(scope)).records, after, finished, self._embedder.space)

    async def delete(self, scope: Scope) -> None:
        if await self._store.read(scope, lambda records: records.head().changes):
            await self._store.write(scope, lambda records: records.clear(), erases=True)
        self._indexes.drop(scope)

    async def close(self) -> None:
        for task in list(self._retries.values()):
            task.cancel()
        self._indexes.clear()
        await self._store.close()


def _page(before: int | None, limit: int) -> Callable[[SemanticRecords], list[StoredRecord]]:
    return lambda records: records.page(before, limit)
