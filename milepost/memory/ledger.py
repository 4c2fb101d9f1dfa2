"""Core blocks and daily logs in the ledger's database, for instances of several processes."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.domain.memory import BlockVersion, DailyEntry, Scope
from milepost.ports.ledger import Ledger
from milepost.ports.memory import DailyRange


class LedgerBlocks:
    """`ports.memory.CoreBlocks`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def versions(self, scope: Scope, label: str) -> tuple[BlockVersion, ...]:
        return (await self.all(scope)).get(label, ())

    async def all(self, scope: Scope) -> dict[str, tuple[BlockVersion, ...]]:
        return await self._ledger.read(lambda tx: tx.memory.versions(scope))

    async def write(self, scope: Scope, label: str, version: BlockVersion) -> BlockVersion:
        return await self._ledger.write(lambda tx: tx.memory.write_version(scope, label, version))

    async def drop(self, scope: Scope) -> None:
        await self._ledger.write(lambda tx: tx.memory.drop_blocks(scope))


class LedgerDailyLog:
    """`ports.memory.DailyLog`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def append(self, scope: Scope, entries: Sequence[DailyEntry]) -> None:
        if entries:
            await self._ledger.write(lambda tx: tx.memory.append_entries(scope, entries))

    async def read(
        self, scope: Scope, start: int, end: int, *, limit: int, after: tuple[int, str] | None = None
    ) -> DailyRange:
        return DailyRange(tuple(await self._ledger.read(lambda tx: tx.memory.entries(scope, start, end, limit, after))))

    async def days(self, scope: Scope) -> list[str]:
        return await self._ledger.read(lambda tx: tx.memory.days(scope))

    async def drop(self, scope: Scope) -> None:
        await self._ledger.write(lambda tx: tx.memory.drop_entries(scope))
