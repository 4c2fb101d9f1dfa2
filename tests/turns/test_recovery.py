"""What holds when workers, Temporal or people interfere: claims, reconciliation, waiting, attaching."""

from __future__ import annotations

import asyncio
from pathlib import Path

from temporalio.client import WorkflowFailureError

from milepost.contracts.activities import TurnInput
from milepost.contracts.naming import SESSION_TURN_WORKFLOW, TURNS_QUEUE, queue_name
from milepost.domain.effects import EffectState
from milepost.domain.errors import TemporalUnavailable
from milepost.domain.turns import TurnState, TurnStatus
from milepost.ports.workflows import TurnStart, WorkflowState
from milepost.services.dispatch import Dispatcher
from milepost.services.reconcile import Reconciler
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.test_stop import first_delta
from tests.turns.test_turns import call, events_of, script


class Unreachable:
    """A cluster that does not answer."""

    async def start_turn(self, start: TurnStart) -> None:
        raise TemporalUnavailable("down")

    async def answer(self, workflow_id: str, approval_id: str) -> None:
        raise TemporalUnavailable("down")

    async def cancel(self, workflow_id: str) -> None:
        raise TemporalUnavailable("down")

    async def state(self, workflow_id: str) -> WorkflowState:
        raise TemporalUnavailable("down")

    async def check(self) -> None:
        raise TemporalUnavailable("down")


async def test_with_temporal_down_a_turn_waits_and_is_delivered_later(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    begun = await stack.send(session, script=script({"text": "late but here"}))
    parts = stack.parts
    assert await Dispatcher(parts.ledger, Unreachable(), parts.clock, "d1").run_once() == 0
    assert await Reconciler(parts.ledger, Unreachable(), parts.clock, "d1").run_once() == 0
    await Reconciler(parts.ledger, Unreachable(), parts.clock, "d1").release()
    assert (await stack.turns.get(begun.turn.turn_id)).status is TurnStatus.WAITING
    async with stack.worker():
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED


async def test_a_turn_that_temporal_never_accepts_is_interrupted_after_the_deadline(
    stack: Stack, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    begun = await stack.send(session, script=script({"text": "never"}))
    parts = stack.parts
    await Dispatcher(parts.ledger, Unreachable(), parts.clock, "d1").run_once()
    reconciler = Reconciler(parts.ledger, Unreachable(), parts.clock, "d1", dispatch_deadline_us=0)
    assert await reconciler.run_once() == 1
    turn = (await stack.turns.get(begun.turn.turn_id)).turn
    assert turn.state is TurnState.INTERRUPTED
    assert "down" in (turn.error_message or "")


async def test_unavailable_is_never_taken_for_not_found(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"text": "word " * 200, "delay": 0.02}))
        await first_delta(stack, session)
        parts = stack.parts
        other = Reconciler(parts.ledger, Unreachable(), parts.clock, "other", dispatch_deadline_us=0)
        for _ in range(20):
            assert await other.run_once() == 0
            await asyncio.sleep(0.05)
        assert (await stack.turns.get(begun.turn.turn_id)).turn.state is TurnState.RUNNING
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED


async def test_a_terminated_workflow_leaves_an_interrupted_turn_with_its_partial_text(
    stack: Stack, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"text": "word " * 800, "delay": 0.02}))
        await first_delta(stack, session)
        await stack.client.get_workflow_handle(begun.turn.workflow_id).terminate("by a person")
        turn = await stack.ended(begun.turn.turn_id)
        follow = await stack.send(session, script=script({"text": "fresh"}))
        assert (await stack.ended(follow.turn.turn_id)).state is TurnState.COMPLETED
    assert turn.state is TurnState.INTERRUPTED
    assert "terminated" in (turn.error_message or "")
    entry = (await stack.history.page(session)).entries[1]
    assert entry.output.text.startswith("word ")
    assert await stack.history.effects(session, state=EffectState.DISPATCHED) == []


async def test_a_second_run_of_a_turn_is_refused(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"text": "word " * 100, "delay": 0.02}))
        await first_delta(stack, session)
        intruder = await stack.client.start_workflow(
            SESSION_TURN_WORKFLOW,
            TurnInput(begun.turn.turn_id, session, stack.parts.ledger.instance_id),
            id=f"{begun.turn.workflow_id}-again",
            task_queue=queue_name(stack.parts.ledger.instance_id, TURNS_QUEUE),
        )
        refused = False
        try:
            await intruder.result()
        except WorkflowFailureError as error:
            refused = getattr(error.cause, "type", "") == "turn_claimed"
        turn = await stack.ended(begun.turn.turn_id)
    assert refused
    assert turn.state is TurnState.COMPLETED
    types = [event.TYPE for event in await events_of(stack, session)]
    assert types.count("model.called") == 1


async def test_a_new_worker_attaches_to_the_command_of_the_old_one(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    responses = script({"calls": [call("bash", command="hang on")]}, {"text": "Done."})
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        async with asyncio.timeout(30):
            while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
                await asyncio.sleep(0.02)
    effect = (await stack.history.effects(session))[-1]
    assert effect.state is EffectState.DISPATCHED, "a worker that leaves decides nothing"
    sandbox = sandboxes.by_session[session]
    async with stack.worker():
        async with asyncio.timeout(30):
            while (await stack.history.effects(session))[-1].attempt < 2:
                await asyncio.sleep(0.05)
        from milepost.ports.sandbox import Outcome

        sandbox.outcomes[effect.spec.effect_id].set_result(Outcome(exit_code=0, stdout=b"finished\n"))
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    assert sandbox.commands() == ["hang on"]


async def test_a_lost_sandbox_makes_the_outcome_uncertain_and_says_so(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    responses = script({"calls": [call("bash", command="hang on")]}, {"text": "I will check."})
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        async with asyncio.timeout(30):
            while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
                await asyncio.sleep(0.02)
    sandbox = sandboxes.by_session[session]
    sandbox.lost = True
    async with stack.worker():
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    assert sandbox.commands() == ["hang on"]
    uncertain = await stack.history.effects(session, state=EffectState.UNCERTAIN)
    assert len(uncertain) == 1
    assert "effect.uncertain" in [event.TYPE for event in await events_of(stack, session)]
