"""The indexes in memory, one for each owner that was used lately."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from milepost.domain.memory import Scope
from milepost.memory.recall_index import RecallIndex
from milepost.ports.semantic_records import Changes, Head, SemanticRecords, SemanticStore

PAGE: Final = 500
MAX_INDEXES: Final = 32
MAX_ROWS: Final = 500_000


@dataclass(slots=True)
class _Slot:
    index: RecallIndex | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Indexes:
    """Builds indexes from the records when they are first asked for, and keeps up with what any process writes.

    Belongs to the event loop that uses it. At most `max_indexes` owners and, but for the largest one alone, `max_rows`
    records are in memory; what was used longest ago goes first.
    """

    def __init__(self, store: SemanticStore, *, max_indexes: int = MAX_INDEXES, max_rows: int = MAX_ROWS) -> None:
        self._store = store
        self._max_indexes = max_indexes
        self._max_rows = max_rows
        self._slots: OrderedDict[str, _Slot] = OrderedDict()

    async def get(self, scope: Scope) -> RecallIndex:
        """The owner's index with everything that was committed before this call. Raises MemoryDamaged."""
        slot = self._slots.setdefault(scope.component, _Slot())
        self._slots.move_to_end(scope.component)
        async with slot.lock:
            while slot.index is None or not await self._caught_up(scope, slot.index):
                slot.index = await self._load(scope)
            index = slot.index
        self._evict(scope)
        return index

    async def _caught_up(self, scope: Scope, index: RecallIndex) -> bool:
        """Take in what changed; False if the index must be made anew."""
        while True:
            after = index.changes
            page = await self._store.read(scope, _changes(after))
            if page is None:
                return index.generation == 0
            if page.head.generation != index.generation:
                return False
            if page.rows or page.forgotten:
                await asyncio.to_thread(index.apply, page)
            index.changes = page.last
            if not page.more:
                return True

    async def _load(self, scope: Scope) -> RecallIndex:
        """An index of all records. Its number of changes is that of the first page, so what came later comes again."""
        index: RecallIndex | None = None
        after = 0
        while True:
            page = await self._store.read(scope, _scan(after))
            if page is None:
                return RecallIndex(Head(0, 0, None))
            if index is not None and page.head.generation != index.generation:
                index, after = None, 0
                continue
            index = index or RecallIndex(page.head)
            await asyncio.to_thread(index.apply, page)
            after = page.last
            if not page.more:
                return index

    def drop(self, scope: Scope) -> None:
        """Forget an index, whoever uses it still."""
        self._slots.pop(scope.component, None)

    def clear(self) -> None:
        self._slots.clear()

    def _evict(self, scope: Scope) -> None:
        rows = sum(len(slot.index) for slot in self._slots.values() if slot.index is not None)
        for key, slot in list(self._slots.items()):
            if len(self._slots) <= self._max_indexes and rows <= self._max_rows:
                return
            if key != scope.component and not slot.lock.locked():
                rows -= 0 if slot.index is None else len(slot.index)
                del self._slots[key]


def _changes(after: int) -> Callable[[SemanticRecords], Changes]:
    return lambda records: records.changes(after, PAGE)


def _scan(after: int) -> Callable[[SemanticRecords], Changes]:
    return lambda records: records.scan(after, PAGE)
