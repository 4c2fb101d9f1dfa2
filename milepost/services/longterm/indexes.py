"""The indexes of namespaces that are searched, made at the first search and kept up to date with the store."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from milepost.domain.longterm import EXACT_CANDIDATES
from milepost.ports.longterm import Change, LongTermStore, Namespace
from milepost.services.longterm import entries
from milepost.services.longterm.entries import Facts

if TYPE_CHECKING:
    from milepost.services.longterm.index import NamespaceIndex

T = TypeVar("T")

PAGE = 250
"""Changes that are read at a time."""

MAX_RECORDS = 2_000_000
"""Records that all indexes hold together; over it the one that was searched longest ago is dropped."""


class _Slot:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.index: NamespaceIndex | None = None


class Indexes:
    """By store and namespace. Searches of one namespace take turns; each runs in a thread."""

    def __init__(self, exact_candidates: int = EXACT_CANDIDATES, max_records: int = MAX_RECORDS) -> None:
        self._exact_candidates = exact_candidates
        self._max_records = max_records
        self._slots: OrderedDict[tuple[str, str], _Slot] = OrderedDict()

    async def use(
        self, store_name: str, store: LongTermStore, namespace: Namespace, work: Callable[[NamespaceIndex], T]
    ) -> T:
        """`work` on an index that has come at least to the namespace's last change, in a thread."""
        from milepost.services.longterm.index import NamespaceIndex  # and numpy, which searches alone need

        place = (store_name, namespace.name)
        slot = self._slots.setdefault(place, _Slot())
        self._slots.move_to_end(place)
        async with slot.lock:
            index = slot.index
            if index is None or index.worn or index.space != namespace.space or index.position < namespace.forgotten:
                slot.index = index = NamespaceIndex(namespace.space, self._exact_candidates)
            await self._follow(index, store, namespace)
            self._shrink(place)
            return await asyncio.to_thread(work, index)

    async def _follow(self, index: NamespaceIndex, store: LongTermStore, namespace: Namespace) -> None:
        while index.position < namespace.changes:
            page = await store.changes(namespace.name, index.position, PAGE)
            if not page:
                return
            whole = await _with_facts(store, namespace.name, page)
            await asyncio.to_thread(index.apply, whole)

    def _shrink(self, kept: tuple[str, str]) -> None:
        total = sum(slot.index.live for slot in self._slots.values() if slot.index is not None)
        for place in list(self._slots):
            slot = self._slots[place]
            if total <= self._max_records:
                return
            if place != kept and slot.index is not None and not slot.lock.locked():
                total -= slot.index.live
                slot.index = None


async def _with_facts(
    store: LongTermStore, namespace: str, page: Sequence[Change]
) -> list[tuple[Change, Facts | None]]:
    """The facts of each change: as they were stored, or made anew where another release counted other tokens."""

    def parsed() -> list[Facts | None]:
        return [None if change.facts is None else entries.read_facts(change.facts) for change in page]

    found = await asyncio.to_thread(parsed)
    pairs = list(zip(page, found, strict=True))
    stale = [change.key for change, facts in pairs if facts is None and change.facts is not None]
    anew: dict[str, Facts | None] = {}
    if stale:
        for key, stored in (await store.get(namespace, stale)).items():
            entry, _ = entries.read(stored.document, f"'{key}' of '{namespace}'")
            anew[key] = entries.read_facts(entries.facts(entry))
    return [(change, facts or anew.get(change.key)) for change, facts in pairs]
