"""A worker that is killed while it writes a turn into memory: `python -m tests.memory.killed FOLDER LEDGER POINT`.

POINT is where it is killed: `begun`, `logged` (the daily log has the turn), `kept` (so has the semantic memory), or
`done`: everything is written, and nobody has been told.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from milepost.bootstrap.system import SystemClock
from milepost.domain.memory import DailyEntry, Scope
from milepost.domain.semantic import Added, MemoryEntry
from milepost.embedders.lexical import LexicalHash
from milepost.memory.block_files import FileBlocks
from milepost.memory.daily_files import FileDailyLog
from milepost.memory.places import Places
from milepost.memory.semantic import IndexedMemory
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.system import Clock
from milepost.services.contents import Contents
from milepost.services.memory_stores import MemoryStores
from milepost.services.remembering import MemoryWriter
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from milepost.storage.semantic_files import FileSemanticStore

T = TypeVar("T")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingLog(FileDailyLog):
    def __init__(self, root: Path, point: str) -> None:
        super().__init__(root)
        self._point = point

    async def append(self, scope: Scope, entries: Sequence[DailyEntry]) -> None:
        if self._point == "begun":
            die()
        await super().append(scope, entries)
        if self._point == "logged":
            die()


class DyingMemory(IndexedMemory):
    point = ""

    async def add(self, scope: Scope, entries: Sequence[MemoryEntry]) -> list[Added]:
        added = await super().add(scope, entries)
        if self.point == "kept":
            die()
        return added


class DyingLedger:
    """Dies when the end of a task has been written."""

    def __init__(self, ledger: Ledger, point: str) -> None:
        self._ledger = ledger
        self._point = point
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        done = await self._ledger.write(body)
        self.writes += 1
        if self._point == "done" and self.writes == 2:
            die()
        return done


def writer(ledger: Ledger, folder: Path, clock: Clock, point: str = "") -> tuple[MemoryWriter, MemoryStores]:
    """A writer over the files below `folder`, with what it writes to."""
    semantic = DyingMemory(FileSemanticStore(Places(folder).semantic), LexicalHash())
    semantic.point = point
    stores = MemoryStores(FileBlocks(folder), DyingLog(folder, point), semantic)
    contents = Contents(FileBlobStore(folder / "blobs"))
    over: Any = DyingLedger(ledger, point)
    rebuild = stores.rebuild(ledger, contents)
    return MemoryWriter(over, clock, contents, stores.daily, semantic, rebuild, f"worker-{os.getpid()}"), stores


async def main(folder: str, ledger_url: str, point: str) -> None:
    async with AsyncExitStack() as stack:
        notifier = await open_notifier(ledger_url)
        stack.push_async_callback(notifier.close)
        ledger = await open_ledger(ledger_url, notifier)
        stack.push_async_callback(ledger.close)
        made, stores = writer(ledger, Path(folder), SystemClock(), point)
        await made.run_once()
        await stores.semantic.close()
        raise AssertionError("nobody was killed")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
