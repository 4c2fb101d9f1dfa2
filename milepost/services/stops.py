"""Watching for the stop of a turn."""

from __future__ import annotations

import asyncio

from milepost.domain.errors import StorageUnavailable
from milepost.ports.ledger import Ledger
from milepost.ports.notifier import Notifier, Subscription, stop_topic

POLL_SECONDS = 0.25
"""A wake-up usually comes at once; the poll is for a lost one."""


class StopWatch:
    """Tells activities when their turn is asked to stop."""

    def __init__(self, ledger: Ledger, notifier: Notifier) -> None:
        self._ledger = ledger
        self._notifier = notifier

    def watch(self, turn_id: str) -> StopSignal:
        """Begin to listen. Do it before the transaction that checks for a stop, so that none falls between."""
        return StopSignal(self._ledger, turn_id, self._notifier.subscribe(stop_topic(turn_id)))


class StopSignal:
    """One activity's ear for the stop of its turn; close it by leaving the context."""

    def __init__(self, ledger: Ledger, turn_id: str, subscription: Subscription) -> None:
        self._ledger = ledger
        self._turn_id = turn_id
        self._subscription = subscription
        self._known = False

    def __enter__(self) -> StopSignal:
        return self

    def __exit__(self, *_: object) -> None:
        self._subscription.close()

    def known(self) -> None:
        """The activity has learned of the stop in another way: every wait returns at once."""
        self._known = True

    async def heard(self) -> bool:
        """Whether word of the stop is here already; for the moment before work begins. Costs no read without word."""
        if self._known or not await self._subscription.wait(0):
            return self._known
        try:
            self._known = await self._asked()
        except StorageUnavailable:
            return False
        return self._known

    async def wait(self) -> None:
        """Return once the turn is asked to stop, or has ended.

        A ledger that does not answer is asked again: the work at hand goes on, and its own end will tell.
        """
        while not self._known:
            await self._subscription.wait(POLL_SECONDS)
            try:
                self._known = await self._asked()
            except StorageUnavailable:
                await asyncio.sleep(POLL_SECONDS)

    async def _asked(self) -> bool:
        turn = await self._ledger.read(lambda tx: tx.turns.get(self._turn_id))
        return turn.stop_requested_at is not None or turn.state.terminal
