"""Waiting for the ledger: its outage is nobody's failure, so it uses up no attempt of a call.

A call that has its answer while the database is away keeps it until it can be recorded; one that has not begun waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from temporalio import activity

from activities.guard import heartbeats
from milepost.domain.errors import StorageUnavailable
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx

T = TypeVar("T")

PATIENCE_SECONDS = 600.0
"""How long one piece of ledger work is tried again, from its first failure. Then the attempt of the call fails."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
WAITED = "The ledger did not answer for"
"""How the note of a wait begins."""
WAITING = "waiting for the ledger"
"""Detail of the heartbeats meanwhile: Temporal shows it."""

_log = get_logger(__name__)


@dataclass
class Waits:
    """What an activity has waited for the ledger so far; `over` when it has ended."""

    seconds: float = 0.0
    over: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What its record shall say."""
        if self.seconds < 0.05:
            return ()
        return (f"{WAITED} {self.seconds:.1f} s; the call waited for it.",)


_waits: ContextVar[Waits | None] = ContextVar("waits", default=None)


@asynccontextmanager
async def patient() -> AsyncIterator[Waits]:
    """While the block runs, work of a `PatientLedger` waits for its ledger, and heartbeats are sent all the time."""
    waits = Waits()
    token = _waits.set(waits)
    try:
        async with heartbeats():
            yield waits
    finally:
        waits.over = True
        _waits.reset(token)


def waited() -> tuple[str, ...]:
    """What the record of the present activity's work shall say of its waiting for the ledger."""
    waits = _waits.get()
    return () if waits is None else waits.notes


class PatientLedger:
    """A ledger whose work is tried again inside `patient`, while the database does not answer.

    Work that is tried again after `CommitUnknown` may have been done: it has to bear that, as `EffectJournal`'s does.
    Anywhere else it is the ledger as it is.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def instance_id(self) -> str:
        return self._ledger.instance_id

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        return await _patiently(lambda: self._ledger.write(body))

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        return await _patiently(lambda: self._ledger.read(body))

    async def check(self) -> None:
        await self._ledger.check()

    async def close(self) -> None:
        await self._ledger.close()


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    begun = time.monotonic()
    try:
        return await work()
    except StorageUnavailable as error:
        waits = _waits.get()
        if waits is None or waits.over:
            raise
        return await _again(work, waits, begun, error)


async def _again(work: Callable[[], Awaitable[T]], waits: Waits, begun: float, error: StorageUnavailable) -> T:
    _log.warning("ledger.awaited", error=error.code, detail=error.message, at_most_seconds=PATIENCE_SECONDS)
    pause, before = FIRST_PAUSE, waits.seconds
    while True:
        with contextlib.suppress(Exception):
            activity.heartbeat(WAITING)
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
        try:
            value = await work()
        except StorageUnavailable:
            if waits.over or time.monotonic() - begun > PATIENCE_SECONDS:
                raise
        else:
            _log.warning("ledger.back", seconds=round(time.monotonic() - begun, 1))
            return value
        finally:
            # Work that waits at the same time waits for the same outage.
            waits.seconds = max(waits.seconds, before + time.monotonic() - begun)
