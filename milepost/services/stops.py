"""Watching for the stop of a turn."""

from __future__ import annotations

from milepost.ports.ledger import Ledger
from milepost.ports.notifier import Notifier, stop_topic

POLL_SECONDS = 0.25
"""A wake-up usually comes at once; the poll is for a lost one."""


class StopWatch:
    """Knows whether a turn was asked to stop."""

    def __init__(self, ledger: Ledger, notifier: Notifier) -> None:
        self._ledger = ledger
        self._notifier = notifier

    async def requested(self, turn_id: str) -> bool:
        """Whether the turn is to stop now (or has ended). Raises TurnNotFound."""
        turn = await self._ledger.read(lambda tx: tx.turns.get(turn_id))
        return turn.stop_requested_at is not None or turn.state.terminal

    async def wait(self, turn_id: str) -> None:
        """Return once the turn is asked to stop."""
        subscription = self._notifier.subscribe(stop_topic(turn_id))
        try:
            while not await self.requested(turn_id):
                await subscription.wait(POLL_SECONDS)
        finally:
            subscription.close()
