"""Giving records their vectors: when they are added, when it failed before, and when the embedder is another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from milepost.domain.errors import EmbeddingFailed
from milepost.domain.memory import Scope
from milepost.engine.lexical import cosine
from milepost.engine.recall import NEAR_COSINE, Claim, indexed_text, passages
from milepost.memory.recall_indexes import Indexes
from milepost.ports.embeddings import Embedder
from milepost.ports.semantic import Progress
from milepost.ports.semantic_records import Embedded, SemanticRecords, SemanticStore, Unembedded

BATCH: Final = 32
MAX_SAME: Final = 8
"""Records that one record can be found to say nearly the same as."""


def now_us() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


class RecordEmbedding:
    """Embeds what waits for it. One call after another for the same owner, so nothing is embedded twice at once."""

    def __init__(
        self, store: SemanticStore, embedder: Embedder, indexes: Indexes, clock: Callable[[], int] = now_us
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._indexes = indexes
        self._clock = clock
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}

    async def waiting(self, scope: Scope, limit: int) -> set[str]:
        """Embed at most `limit` records that have no vector and whose time has come.

        Returns the ids of those that say nearly the same as a record before them. Does nothing while the memory has
        vectors of another embedder: those that wait get theirs when it is reindexed.
        """
        same: set[str] = set()
        async with _Turn(self._locks, scope.component):
            while limit > 0:
                size, now = min(BATCH, limit), self._clock()
                found = await self._store.read(scope, lambda records, n=size, t=now: self._due(records, t, n))
                if not found:
                    break
                limit -= len(found)
                same |= await self._embed(scope, found)
        return same

    def _due(self, records: SemanticRecords, now: int, limit: int) -> list[Unembedded]:
        return records.unembedded(now, limit) if records.head().space in (None, self._embedder.space) else []

    async def _embed(self, scope: Scope, found: Sequence[Unembedded]) -> set[str]:
        try:
            vectors = await self._vectors(found)
        except EmbeddingFailed as error:
            ids, reason, now = [item.id for item in found], error.message, self._clock()
            await self._store.write(scope, lambda records: records.fail(ids, reason, now))
            return set()
        done = [Embedded(item.id, vectors[item.id]) for item in found]
        if self._embedder.neural:
            done = await self._compared(scope, found, done)
        space = self._embedder.space
        await self._store.write(scope, lambda records: records.store(space, done))
        return {item.id for item in done if item.same_as}

    async def _vectors(self, found: Sequence[Unembedded]) -> Mapping[str, tuple[bytes, ...]]:
        parts = [(item.id, part) for item in found for part in passages(_indexed(item))]
        made: list[bytes] = []
        for start in range(0, len(parts), BATCH):
            made += await self._embedder.embed([part for _, part in parts[start : start + BATCH]])
        vectors: dict[str, tuple[bytes, ...]] = {}
        for (record, _), vector in zip(parts, made, strict=True):
            vectors[record] = (*vectors.get(record, ()), vector)
        return vectors

    async def _compared(self, scope: Scope, found: Sequence[Unembedded], done: Sequence[Embedded]) -> list[Embedded]:
        """Note which records say nearly the same as an earlier one, also as one of the same batch."""
        index = await self._indexes.get(scope)
        claims = {item.id: Claim.of(item.text) for item in found}

        def near() -> dict[str, list[str]]:
            short = [item for item in done if len(item.vectors) == 1]
            return {
                item.id: index.similar(item.id, claims[item.id].tokens, item.vectors[0], NEAR_COSINE)[:MAX_SAME]
                for item in short
            }

        close = await asyncio.to_thread(near)
        wanted = sorted({other for others in close.values() for other in others})
        stored = await self._store.read(scope, lambda records: records.read(wanted)) if wanted else []
        speakers = {item.record.id: item.record.speaker for item in stored or ()}
        earlier = {item.record.id: Claim.of(item.record.text) for item in stored or ()}
        result: list[Embedded] = []
        for item, made in zip(found, done, strict=True):
            claim = claims[item.id]
            same = [
                other
                for other in close.get(item.id, ())
                if other in earlier and speakers[other] == item.speaker and claim.may_say(earlier[other])
            ]
            for before, vectors in zip(found, result, strict=False):
                if (
                    before.speaker == item.speaker
                    and claim.may_say(claims[before.id])
                    and cosine(made.vectors[0], vectors.vectors[0]) >= NEAR_COSINE
                ):
                    same.append(before.id)
            result.append(replace(made, same_as=tuple(dict.fromkeys(same))))
        return result

    async def all(self, scope: Scope, total: int, progress: Progress | None) -> None:
        """Embed all records anew and let searches use these vectors. Raises EmbeddingFailed; nothing is lost then.

        Vectors of another space are made beside the old ones and go on from where a failure ended it.
        """
        space = self._embedder.space
        async with _Turn(self._locks, scope.component):
            head = await self._store.read(scope, lambda records: records.head())
            if head is None or head.changes == 0:
                return
            wanted = None if head.space == space else space
            done, after = 0, 0
            while True:
                batch = await self._store.read(scope, lambda records, a=after, w=wanted: records.missing(w, a, BATCH))
                if not batch:
                    if after == 0:
                        break
                    after, wanted = 0, space  # what was added meanwhile
                    continue
                vectors = await self._vectors(batch)
                made = [Embedded(item.id, vectors[item.id]) for item in batch]
                await self._store.write(scope, lambda records, m=made: records.store(space, m))
                after = batch[-1].position
                done += len(batch)
                if progress is not None:
                    progress(min(done, total), total)
            await self._store.write(scope, lambda records: records.switch(space), erases=True)


def _indexed(item: Unembedded) -> str:
    return indexed_text(item.text, at=item.at, speaker=item.speaker, captions=item.captions)


class _Turn:
    """A lock for a key that exists while somebody holds it or waits for it."""

    def __init__(self, locks: dict[str, tuple[asyncio.Lock, list[None]]], key: str) -> None:
        self._locks = locks
        self._key = key

    async def __aenter__(self) -> None:
        lock, users = self._locks.setdefault(self._key, (asyncio.Lock(), []))
        users.append(None)
        try:
            await lock.acquire()
        except BaseException:
            self._leave(users)
            raise

    async def __aexit__(self, *exc: object) -> None:
        lock, users = self._locks[self._key]
        lock.release()
        self._leave(users)

    def _leave(self, users: list[None]) -> None:
        users.pop()
        if not users:
            del self._locks[self._key]
