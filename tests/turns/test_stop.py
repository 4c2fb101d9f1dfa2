"""Stop and cancellation: exact, complete, and never touching another turn."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from milepost.domain.effects import EffectState
from milepost.domain.errors import TurnNotRunning
from milepost.domain.events import ModelCalled, ToolFinished
from milepost.domain.messages import FinishReason
from milepost.domain.turns import TurnState, TurnStatus
from milepost.services.live import Cursor, LiveService
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.stop_rounds import rounds
from tests.turns.test_turns import call, events_of, script


async def first_delta(stack: Stack, session_id: str) -> str:
    live = LiveService(stack.parts.ledger, stack.parts.notifier, stack.parts.clock)
    async with asyncio.timeout(30):
        async for frame in live.follow(session_id, Cursor()):
            if frame.type == "delta":
                return str(frame.data["text"])
    raise AssertionError


async def test_a_turn_nobody_claimed_ends_at_once(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    begun = await stack.send(session, script=script({"text": "never said"}))
    view = await stack.turns.stop(begun.turn.turn_id, actor="test")
    assert view.turn.state is TurnState.STOPPED and view.status is TurnStatus.ENDED
    async with stack.worker():
        after = await stack.send(session, script=script({"text": "next"}))
        turn = await stack.ended(after.turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    called = [event for event in await events_of(stack, session) if isinstance(event, ModelCalled)]
    assert [event.turn_id for event in called] == [after.turn.turn_id]


async def test_stop_in_the_middle_of_an_answer_keeps_the_partial_text(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    long = {"text": "word " * 400, "delay": 0.02}
    async with stack.worker():
        begun = await stack.send(session, script=script(long))
        await first_delta(stack, session)
        view = await stack.turns.stop(begun.turn.turn_id, actor="test", reason="enough")
        assert view.status in (TurnStatus.STOPPING, TurnStatus.ENDED)
        turn = await stack.ended(begun.turn.turn_id)
        follow = await stack.send(session, script=script({"text": "fresh"}))
        after = await stack.ended(follow.turn.turn_id)
    assert turn.state is TurnState.STOPPED
    assert not turn.usage.complete, "what a cut call cost is not known"
    assert after.state is TurnState.COMPLETED
    events = await events_of(stack, session)
    partial = next(event for event in events if isinstance(event, ModelCalled))
    assert partial.finish is FinishReason.STOPPED
    assert partial.message.text and ("word " * 400).startswith(partial.message.text)
    entry = (await stack.history.page(session)).entries[1]
    assert entry.output.text == partial.message.text and entry.agents[0].partial
    with pytest.raises(TurnNotRunning):
        await stack.turns.stop(begun.turn.turn_id, actor="test")


async def test_stop_kills_the_running_command_and_closes_every_call(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    responses = script(
        {"calls": [call("bash", command="hang"), call("bash", command="never")]}, {"text": "not reached"}
    )
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        async with asyncio.timeout(30):
            while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
                await asyncio.sleep(0.02)
        await stack.turns.stop(begun.turn.turn_id, actor="test")
        turn = await stack.ended(begun.turn.turn_id)
        follow = await stack.send(session, script=script({"text": "fresh"}))
        after = await stack.ended(follow.turn.turn_id)
    assert (turn.state, after.state) == (TurnState.STOPPED, TurnState.COMPLETED)
    assert sandboxes.by_session[session].commands() == ["hang"]
    finished = [event for event in await events_of(stack, session) if isinstance(event, ToolFinished)]
    assert [event.state for event in finished] == [EffectState.CANCELLED, EffectState.CANCELLED]
    assert "partial" in finished[0].output.text
    assert await stack.history.effects(session, state=EffectState.DISPATCHED) == []


async def test_a_cancellation_in_temporal_stops_the_turn(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"text": "word " * 800, "delay": 0.02}))
        await first_delta(stack, session)
        await stack.client.get_workflow_handle(begun.turn.workflow_id).cancel()
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.STOPPED
    partial = next(event for event in await events_of(stack, session) if isinstance(event, ModelCalled))
    assert partial.message.text


async def test_no_event_of_a_turn_follows_its_terminal_event(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        for round_ in range(6):
            begun = await stack.send(session, script=script({"text": "word " * 100, "delay": 0.01}))
            await asyncio.sleep(0.05 * round_)
            with contextlib.suppress(TurnNotRunning):
                await stack.turns.stop(begun.turn.turn_id, actor="test")
            await stack.ended(begun.turn.turn_id)
    stored = await stack.parts.ledger.read(lambda tx: tx.events.read(session, limit=10_000))
    last: dict[str, str] = {}
    for event in stored:
        if event.turn_id is not None:
            last[event.turn_id] = event.type
    assert len(last) == 6
    assert set(last.values()) <= {"turn.stopped", "turn.completed"}


async def test_stopping_a_turn_never_touches_the_next(stack: Stack, tmp_path: Path) -> None:
    """A few rounds; `python -m tests.turns.stop_rounds` runs a thousand."""
    async with stack.worker():
        tally = await rounds(stack, tmp_path, 8, seed=3)
    assert tally.stopped + tally.completed == 8 and tally.stopped
