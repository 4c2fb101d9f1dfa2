"""Writing turns that have ended into memory: off the turn's path, at least once, with ids that make it once."""

from __future__ import annotations

import asyncio

from milepost.domain.errors import MilepostError
from milepost.domain.events import StreamKind
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.memory import DailyLog
from milepost.ports.memory_rows import MemoryTask, MemoryTaskKind
from milepost.ports.semantic import SemanticMemory
from milepost.ports.system import Clock
from milepost.services.contents import Contents
from milepost.services.memory_rebuild import MemoryRebuild
from milepost.services.turn_entries import TurnEntries

BATCH = 4
LEASE_US = 120_000_000
TASK_SECONDS = 90.0
"""Less than the lease: whoever takes a task over finds nobody at work on it."""

RETRY_FIRST_US = 1_000_000
RETRY_MAX_US = 300_000_000

_log = get_logger(__name__)


class MemoryWriter:
    """Carries out tasks. `worker` names this process."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        contents: Contents,
        daily: DailyLog,
        semantic: SemanticMemory,
        rebuild: MemoryRebuild,
        worker: str,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._turns = TurnEntries(ledger, contents)
        self._daily = daily
        self._semantic = semantic
        self._rebuild = rebuild
        self._worker = worker

    async def run_once(self) -> int:
        """Carry out what is due, 4 tasks at a time; how many are done. Raises StorageUnavailable."""
        done = 0
        while tasks := await self._ledger.write(self._lease):
            done += sum(await asyncio.gather(*(self._carry_out(task) for task in tasks)))
        return done

    def _lease(self, tx: LedgerTx) -> list[MemoryTask]:
        return tx.memory_tasks.lease(self._worker, self._clock.now(), LEASE_US, BATCH)

    async def _carry_out(self, task: MemoryTask) -> int:
        try:
            async with asyncio.timeout(TASK_SECONDS):
                if task.kind is MemoryTaskKind.REBUILD:
                    await self._rebuild.run(task.subject)
                    await self._ledger.write(lambda tx: tx.memory_tasks.done(task))
                else:
                    await self._write(task)
        except Exception as error:
            # A task is never given up: what it stands for is in no memory otherwise.
            why = str(error) if isinstance(error, MilepostError) else f"{type(error).__name__}: {error}"
            due = self._clock.now() + min(RETRY_FIRST_US * 2 ** min(task.attempts, 20), RETRY_MAX_US)
            _log.warning("memory.retry", kind=task.kind, subject=task.subject, error=why)
            await self._ledger.write(lambda tx: tx.memory_tasks.retry(task, due, why[:1000]))
            return 0
        return 1

    async def _write(self, task: MemoryTask) -> None:
        turn, remembered = await self._turns.of(task.subject)
        new = []
        for each in remembered:
            await self._daily.append(each.scope, each.dated())
            await self._semantic.add(each.scope, each.entries)
            new.append(each.event(turn))
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            tx.events.append(turn.session_id, StreamKind.SESSION, new, now)
            tx.memory_tasks.done(task)
            tx.notify(turn.session_id)

        await self._ledger.write(body)
