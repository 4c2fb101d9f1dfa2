"""A semantic memory that is no more than what the port says: words that two texts share, all in this process.

For tests of what stands on the port; it can be told to fail and to be slow.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import MemoryUnavailable, RecordNotFound
from milepost.domain.memory import DEFAULT_MIN_SCORE, MILLIONTHS, Recall, Recalled, Scope
from milepost.domain.semantic import (
    Added,
    AddOutcome,
    EmbeddingState,
    MemoryEntry,
    MemoryRecord,
    ReindexStep,
    SemanticStats,
    Source,
)
from milepost.ports.semantic import Progress


class WordMemory:
    """`ports.semantic.SemanticMemory`; `failing` and `hang` control it, `calls` counts searches."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, MemoryEntry]] = {}
        self.forgotten: dict[str, set[str]] = {}
        self.failing = False
        self.hang = False
        self.searched: list[str] = []

    async def _pass(self) -> None:
        if self.hang:
            await asyncio.sleep(3600)
        if self.failing:
            raise MemoryUnavailable("The semantic memory is down.")

    async def add(self, scope: Scope, entries: Sequence[MemoryEntry]) -> list[Added]:
        await self._pass()
        kept = self.kept.setdefault(scope.key, {})
        added = []
        for entry in entries:
            outcome = AddOutcome.KNOWN if entry.id in kept else AddOutcome.STORED
            if entry.id in self.forgotten.get(scope.key, set()):
                outcome = AddOutcome.FORGOTTEN
            else:
                kept.setdefault(entry.id, entry)
            added.append(Added(entry.id, entry.id, outcome, EmbeddingState.EMBEDDED))
        return added

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
        self.searched.append(query)
        await self._pass()
        wanted = _words(query)
        found = []
        for entry in self.kept.get(scope.key, {}).values():
            score = MILLIONTHS * len(wanted & _words(entry.text)) // max(len(wanted), 1)
            if score >= min_score and entry.turn_id not in exclude_turns | shown_turns:
                found.append(_recalled(entry, score))
        return Recall(tuple(sorted(found, key=lambda item: (-item.score, item.id))[:limit]))

    async def forget(self, scope: Scope, ids: Sequence[str], by: str) -> list[str]:
        await self._pass()
        kept = self.kept.get(scope.key, {})
        gone = [record_id for record_id in ids if kept.pop(record_id, None) is not None]
        self.forgotten.setdefault(scope.key, set()).update(gone)
        return gone

    async def entries_of(self, scope: Scope, ids: Sequence[str]) -> list[str]:
        await self._pass()
        return [record_id for record_id in dict.fromkeys(ids) if record_id in self.kept.get(scope.key, {})]

    async def get(self, scope: Scope, record_id: str) -> MemoryRecord:
        entry = self.kept.get(scope.key, {}).get(record_id)
        if entry is None:
            raise RecordNotFound(f"There is no record {record_id}.")
        return _record(entry, 1)

    async def page(
        self,
        scope: Scope,
        *,
        before: int | None = None,
        limit: int = 100,
        exclude_turns: frozenset[str] = frozenset(),
        current: bool = False,
    ) -> list[MemoryRecord]:
        records = [_record(entry, place) for place, entry in enumerate(self.kept.get(scope.key, {}).values(), 1)]
        records = [
            record
            for record in reversed(records)
            if (before is None or record.position < before) and record.sources[0].turn_id not in exclude_turns
        ]
        return records[:limit]

    async def stats(self, scope: Scope) -> SemanticStats:
        count = len(self.kept.get(scope.key, {}))
        return SemanticStats(count, count, count, 0, 0, 0, len(self.forgotten.get(scope.key, set())), None, 0)

    async def reindex(self, scope: Scope, progress: Progress | None = None) -> SemanticStats:
        return await self.stats(scope)

    async def reindex_step(self, scope: Scope, *, after: int = 0, seconds: float = 5.0) -> ReindexStep:
        await self._pass()
        count = len(self.kept.get(scope.key, {}))
        return ReindexStep(count, count, 0, True, EmbeddingSpace("words", 8))

    async def delete(self, scope: Scope) -> None:
        self.kept.pop(scope.key, None)
        self.forgotten.pop(scope.key, None)

    async def close(self) -> None:
        return None


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))


def _recalled(entry: MemoryEntry, score: int) -> Recalled:
    return Recalled(
        id=entry.id,
        text=entry.text,
        score=score,
        turn_id=entry.turn_id,
        turn_number=entry.turn_number,
        at=entry.at,
        kind=entry.kind,
        speaker=entry.speaker,
    )


def _record(entry: MemoryEntry, position: int) -> MemoryRecord:
    source = Source(entry.id, entry.at, entry.turn_id, entry.turn_number, entry.effect_id)
    return MemoryRecord(
        entry.id,
        position,
        entry.text,
        entry.kind,
        entry.at,
        entry.speaker,
        entry.captions,
        (source,),
        entry.supersedes,
        None,
        EmbeddingState.EMBEDDED,
        None,
    )
