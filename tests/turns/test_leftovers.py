"""No command of a turn outlives the turn, whoever was away when it ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.domain.effects import EffectState
from milepost.domain.errors import LedgerCorrupt
from milepost.domain.events import ModelCalled
from milepost.domain.turns import TurnState
from milepost.services.reconcile import Reconciler
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.test_recovery import Unreachable
from tests.turns.test_turns import call, events_of, script


async def hanging(stack: Stack, sandboxes: MemorySandboxes, folder: Path) -> tuple[str, str]:
    """A turn whose command has begun and never ends: (session, turn)."""
    session = await stack.open(folder)
    responses = script({"calls": [call("bash", command="hang on")]}, {"text": "not reached"})
    begun = await stack.send(session, script=responses)
    async with asyncio.timeout(30):
        while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
            await asyncio.sleep(0.02)
    return session, begun.turn.turn_id


async def test_a_stop_while_the_worker_is_away_kills_the_command_before_the_turn_ends(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    async with stack.worker():
        session, turn_id = await hanging(stack, sandboxes, tmp_path)
    await stack.turns.stop(turn_id, actor="test")
    async with stack.worker():
        turn = await stack.ended(turn_id)
        killed = set(sandboxes.by_session[session].killed)
    assert turn.state is TurnState.STOPPED
    effect = (await stack.history.effects(session))[-1]
    assert killed == {effect.spec.effect_id}
    assert effect.state is EffectState.CANCELLED
    card = (await stack.history.entry(turn_id)).tools[0]
    assert "partial" in card.preview


async def test_a_workflow_terminated_by_a_person_leaves_no_command_running(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    async with stack.worker():
        session, turn_id = await hanging(stack, sandboxes, tmp_path)
        workflow_id = (await stack.turns.get(turn_id)).turn.workflow_id
        await stack.client.get_workflow_handle(workflow_id).terminate("by a person")
        turn = await stack.ended(turn_id)
        killed = set(sandboxes.by_session[session].killed)
    assert turn.state is TurnState.INTERRUPTED
    assert len(killed) == 1
    assert await stack.history.effects(session, state=EffectState.UNCERTAIN) == []


async def test_a_stop_while_a_retry_waits_invents_no_call_and_no_cost(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    responses = script({"fail": {"status": 429, "retry_after": 600}, "text": "never"})
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        async with asyncio.timeout(30):
            while "model.retried" not in [event.TYPE for event in await events_of(stack, session)]:
                await asyncio.sleep(0.05)
        await stack.turns.stop(begun.turn.turn_id, actor="test")
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.STOPPED
    assert turn.usage.complete
    assert [event for event in await events_of(stack, session) if isinstance(event, ModelCalled)] == []


async def test_a_turn_that_cannot_be_read_does_not_keep_others_from_being_reconciled(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = []
    for _ in range(2):
        session = await stack.open(tmp_path)
        turns.append((await stack.send(session, script=script({"text": "never"}))).turn.turn_id)
    reconciler = Reconciler(stack.parts.ledger, Unreachable(), stack.parts.clock, "one", dispatch_deadline_us=0)
    whole = reconciler._end

    async def damaged(turn: object, ending: object) -> int:
        if getattr(turn, "turn_id", "") == turns[0]:
            raise LedgerCorrupt("planted")
        return await whole(turn, ending)  # type: ignore[arg-type]

    monkeypatch.setattr(reconciler, "_end", damaged)
    assert await reconciler.run_once() == 1
    assert (await stack.turns.get(turns[1])).turn.state is TurnState.INTERRUPTED
