"""The leased loops of a worker process: dispatch, reconcile, heartbeat, tidying, memory.

They work when Temporal does not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from milepost.domain.errors import MilepostError
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, WorkerBeat
from milepost.ports.notifier import MEMORY_TOPIC, OUTBOX_TOPIC, Notifier
from milepost.ports.system import Clock
from milepost.services.dispatch import Dispatcher
from milepost.services.reconcile import Reconciler

DISPATCH_POLL_SECONDS = 1.0
MEMORY_POLL_SECONDS = 2.0
REST_SECONDS = 3.0
"""For what turns that have just ended leave for memory, when a worker is stopped."""
RECONCILE_SECONDS = 30.0
BEAT_SECONDS = 10.0
TIDY_SECONDS = 60.0
BACKOFF_MAX_SECONDS = 15.0

_log = get_logger(__name__)


class Loops:
    """Starts and stops the loops of one process."""

    def __init__(
        self,
        ledger: Ledger,
        notifier: Notifier,
        clock: Clock,
        dispatcher: Dispatcher,
        reconciler: Reconciler,
        beat: Callable[[int], WorkerBeat],
        tidy: Callable[[], Awaitable[object]],
        reconcile_seconds: float = RECONCILE_SECONDS,
        remember: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self._ledger = ledger
        self._notifier = notifier
        self._clock = clock
        self._dispatcher = dispatcher
        self._reconciler = reconciler
        self._beat = beat
        self._tidy = tidy
        self._reconcile_seconds = reconcile_seconds
        self._remember = remember
        self._taking: list[asyncio.Task[None]] = []
        self._beats: asyncio.Task[None] | None = None
        self._remembering: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self._draining = False

    async def start(self) -> None:
        """Announce this worker, then run the loops in the background. Raises StorageUnavailable."""
        await self._send_beat()
        self._beats = asyncio.create_task(self._repeat(BEAT_SECONDS, self._send_beat), name="beat")
        self._taking = [
            asyncio.create_task(
                self._on_topic(OUTBOX_TOPIC, "dispatch", self._dispatcher.run_once, DISPATCH_POLL_SECONDS),
                name="dispatch",
            ),
            asyncio.create_task(self._repeat(self._reconcile_seconds, self._reconciler.run_once), name="reconcile"),
            asyncio.create_task(self._repeat(TIDY_SECONDS, self._tidy), name="tidy"),
        ]
        if self._remember is not None:
            self._remembering = asyncio.create_task(self._remember_all(self._remember), name="remember")

    async def drain(self) -> None:
        """End the loops that take work. This worker is still heard of, as one that serves no queue.

        Memory is still written: turns that end now have something to say.
        """
        self._draining = True
        for task in self._taking:
            task.cancel()
        await asyncio.gather(*self._taking, return_exceptions=True)
        try:
            await self._reconciler.release()
            await self._send_beat()
        except MilepostError as error:
            _log.warning("loops.drain_untold", error=error.code)

    async def stop(self) -> None:
        """End all loops and say goodbye, so that nobody waits for this worker."""
        await self.drain()
        await self._remember_rest()
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        worker = self._beat(self._clock.now()).worker
        try:
            await self._ledger.write(lambda tx: tx.workers.gone(worker))
        except MilepostError as error:
            _log.warning("loops.goodbye_failed", error=error.code)

    async def _send_beat(self) -> None:
        beat = self._beat(self._clock.now())
        if self._draining:
            beat = replace(beat, queues=())
        await self._ledger.write(lambda tx: tx.workers.beat(beat))

    async def _on_topic(self, topic: str, name: str, work: Callable[[], Awaitable[object]], poll: float) -> None:
        subscription = self._notifier.subscribe(topic)
        try:
            failures = 0
            while True:
                failures = await _attempt(name, work, failures)
                await subscription.wait(poll)
        finally:
            subscription.close()

    async def _remember_all(self, work: Callable[[], Awaitable[object]]) -> None:
        """Write what turns leave for memory, until a pass that began when this worker was to leave has ended."""
        subscription = self._notifier.subscribe(MEMORY_TOPIC)
        try:
            failures = 0
            while True:
                last = self._leaving.is_set()
                failures = await _attempt("remember", work, failures)
                if last:
                    return
                told = [asyncio.ensure_future(subscription.wait(MEMORY_POLL_SECONDS))]
                told.append(asyncio.ensure_future(self._leaving.wait()))
                try:
                    await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in told:
                        wait.cancel()
                    await asyncio.gather(*told, return_exceptions=True)
        finally:
            subscription.close()

    async def _remember_rest(self) -> None:
        """What is not written in time is written by the next worker: it stands in the ledger."""
        if self._remembering is None:
            return
        self._leaving.set()
        await asyncio.wait({self._remembering}, timeout=REST_SECONDS)
        if not self._remembering.done():
            _log.warning("memory.left", seconds=REST_SECONDS)
        self._remembering.cancel()
        await asyncio.gather(self._remembering, return_exceptions=True)

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        failures = 0
        while True:
            failures = await _attempt(getattr(work, "__qualname__", "loop"), work, failures)
            await asyncio.sleep(seconds)


async def _attempt(name: str, work: Callable[[], Awaitable[object]], failures: int) -> int:
    """One pass; a failure is logged and answered with a growing, jittered pause. Returns the failures in a row."""
    try:
        await work()
    except MilepostError as error:
        _log.warning("loop.failed", loop=name, error=error.code, detail=error.message)
    except Exception:
        # A loop that dies silently would leave turns undelivered for ever; it goes on and says what happened.
        _log.exception("loop.crashed", loop=name)
    else:
        return 0
    pause = min(0.5 * 2 ** min(failures, 10), BACKOFF_MAX_SECONDS)
    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
    return failures + 1
