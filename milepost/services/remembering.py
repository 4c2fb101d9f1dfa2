"""Writing turns that have ended into memory: off the turn's path, at least once, with ids that make it once."""

from __future__ import annotations

import asyncio
from functools import partial

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

REBUILD_SECONDS = 6 * 3600.0
"""A rebuild embeds everything that a Session has said, so it may take long; its lease is renewed meanwhile."""

RENEW_SECONDS = 30.0
LOOK_SECONDS = 1.0
"""After which more tasks are taken while one goes on."""

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
        running: set[asyncio.Task[int]] = set()
        try:
            while True:
                if len(running) < BATCH:
                    tasks = await self._ledger.write(partial(self._lease, limit=BATCH - len(running)))
                    running |= {asyncio.create_task(self._carry_out(task)) for task in tasks}
                if not running:
                    return done
                ended, running = await asyncio.wait(running, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                done += sum(task.result() for task in ended)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _lease(self, tx: LedgerTx, limit: int) -> list[MemoryTask]:
        return tx.memory_tasks.lease(self._worker, self._clock.now(), LEASE_US, limit)

    async def _carry_out(self, task: MemoryTask) -> int:
        try:
            if task.kind is MemoryTaskKind.REBUILD:
                await self._rebuilt(task)
            else:
                async with asyncio.timeout(TASK_SECONDS):
                    await self._write(task)
        except Exception as error:
            # A task is never given up: what it stands for is in no memory otherwise.
            why = str(error) if isinstance(error, MilepostError) else f"{type(error).__name__}: {error}"
            due = self._clock.now() + min(RETRY_FIRST_US * 2 ** min(task.attempts, 20), RETRY_MAX_US)
            _log.warning("memory.retry", kind=task.kind, subject=task.subject, error=why)
            await self._ledger.write(lambda tx: tx.memory_tasks.retry(task, due, why[:1000]))
            return 0
        return 1

    async def _rebuilt(self, task: MemoryTask) -> None:
        renewing = asyncio.create_task(self._renew(task))
        try:
            async with asyncio.timeout(REBUILD_SECONDS):
                await self._rebuild.run(task.subject)
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
        await self._ledger.write(lambda tx: tx.memory_tasks.done(task))

    async def _renew(self, task: MemoryTask) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            until = self._clock.now() + LEASE_US
            try:
                await self._ledger.write(partial(self._hold, task=task, until=until))
            except MilepostError as error:
                _log.warning("memory.lease", subject=task.subject, error=str(error))

    def _hold(self, tx: LedgerTx, task: MemoryTask, until: int) -> bool:
        return tx.memory_tasks.renew(task, self._worker, until)

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
