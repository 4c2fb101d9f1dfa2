"""Effects whose outcome is unknown: reconciled by a person, or settled late by the attempt that was taken for lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.domain.effects import Effect, EffectState, Resolution
from milepost.domain.errors import EffectNotFound, EffectNotUncertain, Fenced, InvalidInput
from milepost.domain.events import EffectReconciled, StopRequested, ToolFinished
from milepost.domain.turns import TurnState
from milepost.ports.ledger import NewEvent
from milepost.services.effects import EffectJournal, Settlement
from milepost.services.outcomes import OutcomeService, Reconciliation
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.test_turns import call, events_of, script

APPLIED = Reconciliation(Resolution.APPLIED, "anna", "looked", "the issue tracker", "created issue 7")


def outcomes(stack: Stack) -> OutcomeService:
    return OutcomeService(stack.parts.ledger, stack.parts.contents, stack.parts.clock)


async def abandoned(stack: Stack, sandboxes: MemorySandboxes, folder: Path) -> tuple[str, str, Effect]:
    """(Session, turn, effect) of a command that was at work when the only worker left."""
    session = await stack.open(folder)
    responses = script({"calls": [call("bash", command="hang on")]}, {"text": "I see."})
    async with stack.worker(grace=0.1):
        begun = await stack.send(session, script=responses)
        async with asyncio.timeout(30):
            while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
                await asyncio.sleep(0.02)
    effect = (await stack.history.effects(session))[-1]
    assert effect.state is EffectState.DISPATCHED
    return session, begun.turn.turn_id, effect


async def reconciled(stack: Stack, session: str) -> list[EffectReconciled]:
    return [event for event in await events_of(stack, session) if isinstance(event, EffectReconciled)]


async def test_a_lost_call_is_reconciled_after_its_turn_has_ended(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session, turn_id, effect = await abandoned(stack, sandboxes, tmp_path)
    effect_id = effect.spec.effect_id
    with pytest.raises(EffectNotUncertain):
        await outcomes(stack).reconcile(effect_id, APPLIED)
    sandboxes.by_session[session].lost = True
    async with stack.worker():
        assert (await stack.ended(turn_id)).state is TurnState.COMPLETED
    card = (await stack.history.entry(turn_id)).tools[0]
    assert (card.state, card.is_error) == (EffectState.UNCERTAIN, True)
    settled = await outcomes(stack).reconcile(effect_id, APPLIED)
    assert settled.state is EffectState.SUCCEEDED
    for again in (APPLIED, Reconciliation(Resolution.NOT_APPLIED, "ben")):
        with pytest.raises(EffectNotUncertain):
            await outcomes(stack).reconcile(effect_id, again)
    (event,) = await reconciled(stack, session)
    assert (event.resolution, event.actor, event.reason, event.evidence) == (
        "applied",
        "anna",
        "looked",
        "the issue tracker",
    )
    assert event.result is not None and event.result.text == "created issue 7"
    entry = await stack.history.entry(turn_id)
    assert entry.tools[0].state is EffectState.SUCCEEDED
    assert entry.turn.state is TurnState.COMPLETED
    assert "unknown" in entry.tools[0].preview, "what the agent was told stays"
    with pytest.raises(EffectNotFound):
        await outcomes(stack).reconcile("0" * 64, APPLIED)
    with pytest.raises(InvalidInput):
        await outcomes(stack).reconcile(effect_id, Reconciliation(Resolution.LATE, "anna"))


async def test_a_call_reconciled_before_the_model_was_told_gets_that_result(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session, turn_id, effect = await abandoned(stack, sandboxes, tmp_path)
    effect_id = effect.spec.effect_id
    # As a worker leaves it that dies between finding the call lost and telling the model.
    await stack.parts.ledger.write(
        lambda tx: tx.effects.settle(effect_id, effect.attempt, EffectState.UNCERTAIN, 1, None)
    )
    await outcomes(stack).reconcile(effect_id, APPLIED)
    async with stack.worker():
        assert (await stack.ended(turn_id)).state is TurnState.COMPLETED
    (finished,) = [event for event in await events_of(stack, session) if isinstance(event, ToolFinished)]
    assert (finished.state, finished.is_error, finished.output.text) == (
        EffectState.SUCCEEDED,
        False,
        "created issue 7",
    )
    assert sandboxes.by_session[session].commands() == ["hang on"]


async def test_a_late_success_settles_and_a_reconciled_one_is_refused(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    journal = EffectJournal(stack.parts.ledger, stack.parts.clock, "late worker")
    late = Settlement(EffectState.SUCCEEDED, b"{}")
    for first in ("worker", "person"):
        session, turn_id, effect = await abandoned(stack, sandboxes, tmp_path)
        sandboxes.by_session[session].lost = True
        async with stack.worker():
            await stack.ended(turn_id)
        if first == "worker":
            # Its own events belong to a turn that has ended: they are left out, and the outcome is kept.
            own = NewEvent("late/own", StopRequested(turn_id, "late worker"), turn_id)
            await journal.settle(effect.spec, effect.attempt, late, [own])
            with pytest.raises(EffectNotUncertain):
                await outcomes(stack).reconcile(effect.spec.effect_id, APPLIED)
        else:
            await outcomes(stack).reconcile(effect.spec.effect_id, Reconciliation(Resolution.COMPENSATED, "anna"))
            with pytest.raises(Fenced):
                await journal.settle(effect.spec, effect.attempt, late, [])
        (event,) = await reconciled(stack, session)
        assert (event.resolution, event.actor) == (
            ("late", "late worker") if first == "worker" else ("compensated", "anna")
        )
        state = (await stack.history.entry(turn_id)).tools[0].state
        assert state is (EffectState.SUCCEEDED if first == "worker" else EffectState.FAILED)
