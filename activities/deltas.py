"""Writing streamed text to the delta log, coalesced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from milepost.domain.errors import MilepostError
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Delta, Ledger, LedgerTx
from milepost.ports.system import Clock

COALESCE_SECONDS = 0.025
AGAIN_SECONDS = 0.25
"""Pause after a write that failed."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """The model call whose text is written."""

    session_id: str
    turn_id: str
    agent: str
    effect_id: str
    attempt: int


class DeltaWriter:
    """Collects text by channel and writes it about every 25 ms.

    What could not be written is written again, piece by piece as it was, so that no reader ever meets a hole. It is no
    part of the call's outcome: a call whose log cannot be written goes on.
    """

    def __init__(self, ledger: Ledger, clock: Clock, call: Call) -> None:
        self._ledger = ledger
        self._clock = clock
        self._call = call
        self._whole: dict[str, list[str]] = {"text": [], "reasoning": []}
        self._pending: dict[str, list[str]] = {}
        self._offsets = {"text": 0, "reasoning": 0}
        self._unwritten: list[Delta] = []
        self._dirty = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> DeltaWriter:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add(self, channel: str, text: str) -> None:
        """Take a piece of text; its size is bounded by the provider's response bounds."""
        if text:
            self._whole[channel].append(text)
            self._pending.setdefault(channel, []).append(text)
            self._dirty.set()

    def text(self, channel: str) -> str:
        """All text of a channel so far."""
        return "".join(self._whole[channel])

    async def _run(self) -> None:
        while True:
            await self._dirty.wait()
            # A pause before the write coalesces; an answer that is complete by then needs no delta at all.
            await asyncio.sleep(COALESCE_SECONDS)
            self._dirty.clear()
            pending, self._pending = self._pending, {}
            self._unwritten += [self._delta(channel, "".join(pieces)) for channel, pieces in pending.items()]
            deltas = tuple(self._unwritten)
            now = self._clock.now()

            def body(tx: LedgerTx, deltas: tuple[Delta, ...] = deltas, now: int = now) -> None:
                tx.deltas.add(self._call.session_id, deltas, now)
                tx.notify(self._call.session_id)

            try:
                await self._ledger.write(body)
            except MilepostError as error:
                _log.warning("deltas.not_written", turn_id=self._call.turn_id, error=error.code)
                self._dirty.set()
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self._unwritten.clear()

    def _delta(self, channel: str, text: str) -> Delta:
        offset = self._offsets[channel]
        self._offsets[channel] = offset + len(text)
        call = self._call
        return Delta(call.turn_id, call.agent, call.effect_id, call.attempt, channel, offset, text)
