"""Calls of several agents in one sandbox: one that must be alone waits for the others, and they for it.

What is at work is read from the ledger, so it holds for every process and across a crash: a command that a lost worker
left running counts until its end is known.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from activities.guard import heartbeats
from activities.sandboxed import Opened
from activities.toolcalls import ToolCall, is_sandboxed, policy_of, started_event
from milepost.domain.effects import EffectState
from milepost.domain.tools import BUILTIN_TOOL_POLICIES, SANDBOXED_OPERATIONS, Parallel
from milepost.ports.ledger import LedgerTx, NewEvent
from milepost.services.effects import EffectJournal, Entered
from milepost.services.gate import Gate

FIRST_WAIT = 0.02
LONGEST_WAIT = 0.25
"""Seconds between looks at whether the sandbox is free."""

_TOOL = "tool:"


async def enter_alone(journal: EffectJournal, call: ToolCall, opened: Opened, gate: Gate) -> Entered:
    """Enter the call's effect, in a turn of several agents as soon as the calls of the others allow it.

    A stop ends the wait. Raises TurnClaimed.
    """
    spec, claim = call.spec, call.params.claim

    def blocked(tx: LedgerTx) -> bool:
        alone = _alone(call)
        others = [effect for effect in tx.effects.open_of_turn(spec.turn_id) if effect.spec.agent != spec.agent]
        running = [effect.spec.operation for effect in others if effect.state is EffectState.DISPATCHED]
        return any(operation in SANDBOXED_OPERATIONS and (alone or _exclusive(operation)) for operation in running)

    def events(attempt: int) -> list[NewEvent]:
        return [started_event(call, attempt, opened.boot)]

    if not (call.params.team and is_sandboxed(call)):
        return await journal.enter(spec, claim, events, gate)
    wait = FIRST_WAIT
    async with heartbeats():
        while True:
            entered = await journal.enter(spec, claim, events, gate, blocked=blocked)
            if not entered.blocked:
                return entered
            if await call.stop.heard():
                return replace(entered, stop_requested=True)
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)


def _alone(call: ToolCall) -> bool:
    policy = policy_of(call.context.started, call.part.tool)
    return policy is None or policy.parallel is Parallel.EXCLUSIVE


def _exclusive(operation: str) -> bool:
    return BUILTIN_TOOL_POLICIES[operation.removeprefix(_TOOL)].parallel is Parallel.EXCLUSIVE
