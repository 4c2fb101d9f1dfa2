"""Memory of before 1.0 as an input of what is written now: read where nothing newer is, copied, never changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from milepost.domain.errors import LegacyUnusable
from milepost.domain.memory import DEFAULT_MIN_SCORE, BlockVersion, DailyEntry, Recall, Scope
from milepost.domain.semantic import (
    MAX_ENTRIES,
    Added,
    AddOutcome,
    MemoryEntry,
    MemoryRecord,
    ReindexStep,
    SemanticStats,
)
from milepost.ledger import legacy
from milepost.memory.daily_files import day_of
from milepost.memory.legacy_files import LegacyFiles
from milepost.observability.logging import get_logger
from milepost.ports.memory import CoreBlocks, DailyLog, DailyRange
from milepost.ports.semantic import Progress, SemanticMemory

LEGACY = "legacy"

_log = get_logger(__name__)


class LegacyBlocks:
    """`ports.memory.CoreBlocks`: an owner without any current block has those of the exact legacy file.

    The first write takes them along, as version 1 of each block.
    """

    def __init__(self, inner: CoreBlocks, files: LegacyFiles) -> None:
        self._inner = inner
        self._files = files

    async def versions(self, scope: Scope, label: str) -> tuple[BlockVersion, ...]:
        return (await self.all(scope)).get(label, ())

    async def all(self, scope: Scope) -> dict[str, tuple[BlockVersion, ...]]:
        current = await self._inner.all(scope)
        return current or {label: (version,) for label, version in (await self._legacy(scope)).items()}

    async def write(self, scope: Scope, label: str, version: BlockVersion) -> BlockVersion:
        # Also a block that the old file does not have: once there is a current one, that file is not read any more.
        if not await self._inner.all(scope):
            for known, first in (await self._legacy(scope)).items():
                # Whoever saw a legacy block writes its second version; a first one is of memory that is made anew.
                if known != label or version.number > 1:
                    await self._inner.write(scope, known, first)
        return await self._inner.write(scope, label, version)

    async def drop(self, scope: Scope) -> None:
        await self._inner.drop(scope)

    async def _legacy(self, scope: Scope) -> dict[str, BlockVersion]:
        file = await asyncio.to_thread(self._files.core, scope)
        if file is None:
            return {}
        try:
            values = legacy.core_blocks(file.data)
        except LegacyUnusable as error:
            _log.warning("legacy.unusable", owner=scope.key, error=error.message)
            return {}
        return {label: BlockVersion(1, value, file.at, LEGACY, LEGACY) for label, value in values.items()}


class LegacyDailyLog:
    """`ports.memory.DailyLog`: reads merge the exact legacy folder, writes go to the current log alone."""

    def __init__(self, inner: DailyLog, files: LegacyFiles) -> None:
        self._inner = inner
        self._files = files

    async def append(self, scope: Scope, entries: Sequence[DailyEntry]) -> None:
        await self._inner.append(scope, entries)

    async def read(
        self, scope: Scope, start: int, end: int, *, limit: int, after: tuple[int, str] | None = None
    ) -> DailyRange:
        current = await self._inner.read(scope, start, end, limit=limit, after=after)
        old = await asyncio.to_thread(self._range, scope, start, end, after)
        if not old.entries and not old.damaged:
            return current
        # The current one wins where both have an id.
        known = {entry.id: entry for entry in (*old.entries, *current.entries)}
        merged = sorted(known.values(), key=lambda entry: (entry.at, entry.id))
        return DailyRange(tuple(merged[:limit]), current.damaged + old.damaged)

    async def days(self, scope: Scope) -> list[str]:
        old = await asyncio.to_thread(self._files.days, scope)
        return sorted({*await self._inner.days(scope), *old})

    async def drop(self, scope: Scope) -> None:
        await self._inner.drop(scope)

    def _range(self, scope: Scope, start: int, end: int, after: tuple[int, str] | None) -> DailyRange:
        """Legacy days are those of the machine's time zone then, so their neighbors are looked at as well."""
        found: list[DailyEntry] = []
        damaged = 0
        day = timedelta(days=1) // timedelta(microseconds=1)
        first, last = day_of(start - day), day_of(end + day)
        for date in self._files.days(scope):
            file = self._files.day(scope, date) if first <= date <= last else None
            if file is None:
                continue
            entries, bad = legacy.daily_entries(file.data, date)
            damaged += bad
            found += [
                entry
                for entry in entries
                if start <= entry.at < end and (after is None or (entry.at, entry.id) > after)
            ]
        return DailyRange(tuple(found), damaged)


class LegacySemantic:
    """`ports.semantic.SemanticMemory`: an owner without any record is given those of the exact legacy file."""

    def __init__(self, inner: SemanticMemory, files: LegacyFiles) -> None:
        self._inner = inner
        self._files = files
        self._looked: set[str] = set()
        self._lock = asyncio.Lock()

    async def add(self, scope: Scope, entries: Sequence[MemoryEntry]) -> list[Added]:
        await self._take(scope)
        return await self._inner.add(scope, entries)

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
        await self._take(scope)
        return await self._inner.search(
            scope, query, limit=limit, min_score=min_score, exclude_turns=exclude_turns, shown_turns=shown_turns
        )

    async def forget(self, scope: Scope, ids: Sequence[str], by: str) -> list[str]:
        await self._take(scope)
        return await self._inner.forget(scope, ids, by)

    async def entries_of(self, scope: Scope, ids: Sequence[str]) -> list[str]:
        await self._take(scope)
        return await self._inner.entries_of(scope, ids)

    async def get(self, scope: Scope, record_id: str) -> MemoryRecord:
        await self._take(scope)
        return await self._inner.get(scope, record_id)

    async def page(
        self,
        scope: Scope,
        *,
        before: int | None = None,
        limit: int = 100,
        exclude_turns: frozenset[str] = frozenset(),
        current: bool = False,
    ) -> list[MemoryRecord]:
        await self._take(scope)
        return await self._inner.page(scope, before=before, limit=limit, exclude_turns=exclude_turns, current=current)

    async def stats(self, scope: Scope) -> SemanticStats:
        await self._take(scope)
        return await self._inner.stats(scope)

    async def reindex(self, scope: Scope, progress: Progress | None = None) -> SemanticStats:
        await self._take(scope)
        return await self._inner.reindex(scope, progress)

    async def reindex_step(self, scope: Scope, *, after: int = 0, seconds: float = 5.0) -> ReindexStep:
        await self._take(scope)
        return await self._inner.reindex_step(scope, after=after, seconds=seconds)

    async def delete(self, scope: Scope) -> None:
        self._looked.add(scope.key)
        await self._inner.delete(scope)

    async def close(self) -> None:
        await self._inner.close()

    async def _take(self, scope: Scope) -> None:
        """Once for an owner in a process. What was taken has ids, so taking it again changes nothing."""
        if scope.key in self._looked:
            return
        async with self._lock:
            if scope.key in self._looked:
                return
            file = await asyncio.to_thread(self._files.records, scope)
            entries = [] if file is None else await asyncio.to_thread(legacy.memory_entries, file.data, file.at)
            if entries and await self._wanting(scope, entries):
                for first in range(0, len(entries), MAX_ENTRIES):
                    await self._inner.add(scope, entries[first : first + MAX_ENTRIES])
            self._looked.add(scope.key)

    async def _wanting(self, scope: Scope, entries: list[MemoryEntry]) -> bool:
        """Whether the owner has nothing yet, or a process was killed that was giving it these."""
        stats = await self._inner.stats(scope)
        if not stats.entries:
            return not stats.forgotten
        oldest = await self._inner.page(scope, before=2, limit=1)
        if not any(source.entry_id == entries[0].id for record in oldest for source in record.sources):
            return False
        (last,) = await self._inner.add(scope, entries[-1:])
        return last.outcome in (AddOutcome.STORED, AddOutcome.DUPLICATE, AddOutcome.NEAR_DUPLICATE)
