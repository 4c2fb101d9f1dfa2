"""Entering a model call when its budget has room for it beside the calls that are under way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from activities.modelcalls import ModelCall, lost_attempt
from milepost.domain.errors import BudgetExceeded
from milepost.ports.ledger import NewEvent
from milepost.services.effects import Charge, EffectJournal, Entered, Settlement
from milepost.services.stops import StopSignal

FIRST_WAIT = 0.05
LONGEST_WAIT = 1.0
"""Seconds between looks."""
PATIENCE_SECONDS = 600.0
"""How long a call waits for others to end; then it is refused."""

Refused = Callable[[int, BudgetExceeded], tuple[Settlement, Sequence[NewEvent]]]


async def enter_in_budget(journal: EffectJournal, call: ModelCall, refused: Refused, stop: StopSignal) -> Entered:
    """Dispatch a model call; first wait while others under way might use up what it needs. A stop ends the wait.

    Raises TurnClaimed.
    """
    charge = Charge(call.ask, refused, waits=True)
    wait, end = FIRST_WAIT, time.monotonic() + PATIENCE_SECONDS
    while True:
        entered = await journal.enter(
            call.spec, call.params.claim, lambda attempt: lost_attempt(call, attempt), charge=charge
        )
        if not entered.blocked:
            return entered
        if await stop.heard():
            return replace(entered, stop_requested=True)
        if time.monotonic() > end:
            charge = replace(charge, waits=False)
        await asyncio.sleep(wait)
        wait = min(wait * 2, LONGEST_WAIT)
