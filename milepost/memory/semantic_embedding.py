"""Giving records their vectors: when they are added, when it failed before, and when the embedder is another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import EmbeddingFailed
from milepost.domain.memory import Scope
from milepost.domain.semantic import FACT
from milepost.engine.lexical import cosine
from milepost.engine.recall import NEAR_COSINE, Claim, embedded_text, passages
from milepost.memory.recall_indexes import Indexes
from milepost.ports.embeddings import Embedder
from milepost.ports.semantic_records import Embedded, SemanticRecords, SemanticStore, Unembedded

BATCH: Final = 32
MAX_FAILURES: Final = 2
"""Failed calls after which the embedder is left alone until the next time."""
MAX_SAME: Final = 64
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
        failures = 0
        async with _Turn(self._locks, scope.component):
            while limit > 0 and failures < MAX_FAILURES:
                due = await self._store.read(scope, self._due(min(BATCH, limit)))
                if not due:
                    break
                # One by one after a failure: a text that cannot be embedded must not keep others from it.
                batch = [item for item in due if item.attempts == 0] or due[:1]
                limit -= len(batch)
                said = await self._embed(scope, batch)
                failures += said is None
                same |= said or set()
        return same

    def _due(self, limit: int) -> Callable[[SemanticRecords], list[Unembedded]]:
        now, own = self._clock(), (None, self._embedder.space)
        return lambda records: records.unembedded(now, limit) if records.head().space in own else []

    async def _embed(self, scope: Scope, found: Sequence[Unembedded]) -> set[str] | None:
        """Those that say nearly the same as another; None if they could not be embedded."""
        try:
            vectors = await self._vectors(found)
        except EmbeddingFailed as error:
            ids, reason, now = [item.id for item in found], error.message, self._clock()
            await self._store.write(scope, lambda records: records.fail(ids, reason, now))
            return None
        done = [Embedded(item.id, vectors[item.id]) for item in found]
        if self._embedder.neural:
            done = await self._compared(scope, found, done)
        await self._store.write(scope, _store(self._embedder.space, done))
        return {item.id for item in done if item.same_as}

    async def _vectors(self, found: Sequence[Unembedded]) -> Mapping[str, tuple[bytes, ...]]:
        parts = await asyncio.to_thread(lambda: [(item.id, part) for item in found for part in passages(_text(item))])
        made: list[bytes] = []
        for start in range(0, len(parts), BATCH):
            made += await self._embedder.embed([part for _, part in parts[start : start + BATCH]])
        vectors: dict[str, tuple[bytes, ...]] = {}
        for (record, _), vector in zip(parts, made, strict=True):
            vectors[record] = (*vectors.get(record, ()), vector)
        return vectors

    async def _compared(self, scope: Scope, found: Sequence[Unembedded], done: Sequence[Embedded]) -> list[Embedded]:
        """Note which facts say nearly the same as an earlier one, also as one of the same batch."""
        facts = {item.id: item.text for item in found if item.kind == FACT}
        if not facts:
            return list(done)
        index = await self._indexes.get(scope)
        short = {item.id: item.vectors[0] for item in done if item.id in facts and len(item.vectors) == 1}
        near = await asyncio.to_thread(
            lambda: {record: index.similar(record, vector, NEAR_COSINE) for record, vector in short.items()}
        )
        wanted = sorted({other for others in near.values() for other in others})
        stored = await self._store.read(scope, lambda records: records.read(wanted)) if wanted else []
        texts = {item.record.id: item.record.text for item in stored or ()} | facts
        same = await asyncio.to_thread(_same, short, near, texts)
        return [replace(item, same_as=same.get(item.id, ())) for item in done]

    async def again(self, scope: Scope, after: int, seconds: float) -> tuple[int, int, bool]:
        """Embed records anew from position `after` on, for about `seconds`; see `SemanticMemory.reindex_step`.

        Returns how many were embedded, where to go on, and whether all is done.
        """
        space, embedded, end = self._embedder.space, 0, time.monotonic() + seconds
        async with _Turn(self._locks, scope.component):
            while True:
                head = await self._store.read(scope, lambda records: records.head())
                if head is None or head.changes == 0:
                    return embedded, 0, True
                own = head.space in (None, space)
                batch = await self._store.read(scope, _missing(None if own else space, after))
                if batch:
                    vectors = await self._vectors(batch)
                    done = [Embedded(item.id, vectors[item.id]) for item in batch]
                    await self._store.write(scope, _store(space, done))
                    embedded, after = embedded + len(batch), batch[-1].position
                elif after and not own:
                    after = 0  # what was added meanwhile
                elif await self._store.write(scope, lambda records: records.switch(space), erases=True):
                    return embedded, 0, True
                if time.monotonic() > end:
                    return embedded, after, False


def _missing(space: EmbeddingSpace | None, after: int) -> Callable[[SemanticRecords], list[Unembedded]]:
    return lambda records: records.missing(space, after, BATCH)


def _store(space: EmbeddingSpace, done: Sequence[Embedded]) -> Callable[[SemanticRecords], None]:
    return lambda records: records.store(space, done)


def _text(item: Unembedded) -> str:
    return embedded_text(item.text, fact=item.kind == FACT, at=item.at, speaker=item.speaker, captions=item.captions)


def _same(
    vectors: Mapping[str, bytes], near: Mapping[str, Sequence[str]], texts: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """For each new fact the earlier ones that it says again: those that `near` names, and new ones before it."""
    claims = {record: Claim.of(text) for record, text in texts.items()}
    result: dict[str, tuple[str, ...]] = {}
    earlier: list[str] = []
    for record, vector in vectors.items():
        beside = [other for other in earlier if cosine(vector, vectors[other]) >= NEAR_COSINE]
        said = [other for other in (*near[record], *beside) if other in claims]
        same = [other for other in dict.fromkeys(said) if claims[record].may_say(claims[other])]
        result[record] = tuple(same[:MAX_SAME])
        earlier.append(record)
    return result


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
