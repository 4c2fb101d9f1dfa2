"""Turns on a real Temporal server and a real ledger: begin to terminal event, tools, limits, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milepost.bootstrap.system import UuidIds
from milepost.domain.effects import EffectState
from milepost.domain.errors import AgentUnknown, IdempotencyMismatch, InvalidInput, SessionClosed, TurnRunning
from milepost.domain.events import ModelCalled, ToolFinished
from milepost.domain.turns import TurnState
from milepost.ledger.chain import verify_chain
from milepost.ledger.codec import decode_event
from milepost.services.turns import BeginTurn, TurnService
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack


def script(*responses: object) -> str:
    """A script as YAML (JSON is YAML)."""
    return json.dumps({"responses": list(responses)})


def call(tool: str, **args: object) -> dict[str, object]:
    return {"tool": tool, "args": args}


async def events_of(stack: Stack, session_id: str) -> list[object]:
    stored = await stack.parts.ledger.read(lambda tx: tx.events.read(session_id, limit=10_000))
    verify_chain(stored)
    return [decode_event(item.type, item.version, item.payload) for item in stored]


async def test_a_text_turn_completes_and_ends_with_its_terminal_event(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"text": "Hello there.", "reasoning": "be kind"}))
        assert begun.created
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    assert turn.usage.complete and turn.usage.output_tokens > 0
    types = [event.TYPE for event in await events_of(stack, session)]
    assert types == [
        "session.opened",
        "turn.begun",
        "agent.started",
        "model.called",
        "agent.output",
        "turn.completed",
    ]
    entry = (await stack.history.page(session)).entries[0]
    assert entry.output.text == "Hello there."
    assert not entry.agents[0].partial


async def test_each_tool_call_runs_once_and_its_result_reaches_the_model(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    responses = script(
        {"text": "Looking.", "calls": [call("read_file", path="a.txt"), call("write_file", path="a.txt", content="x")]},
        {"calls": [call("bash", command="make test"), call("bash", command="exit 3")]},
        {"text": "Done."},
    )
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    assert sandboxes.by_session[session].commands() == ["make test", "exit 3"]
    events = await events_of(stack, session)
    finished = [event for event in events if isinstance(event, ToolFinished)]
    assert [event.state for event in finished] == [
        EffectState.FAILED,
        EffectState.SUCCEEDED,
        EffectState.SUCCEEDED,
        EffectState.FAILED,
    ]
    assert "make test" in finished[2].output.text
    effects = await stack.history.effects(session)
    assert len(effects) == 7
    assert {effect.attempt for effect in effects} == {1}


async def test_a_later_turn_sees_the_earlier_ones(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        first = await stack.send(session, "first", script({"text": "one"}))
        await stack.ended(first.turn.turn_id)
        second = await stack.send(session, "second", script({"text": "two"}))
        await stack.ended(second.turn.turn_id)
        third = await stack.send(session, "third", script({"text": "three"}))
        turn = await stack.ended(third.turn.turn_id)
    called = [event for event in await events_of(stack, session) if isinstance(event, ModelCalled)]
    # The scripted provider counts the words it was sent.
    assert called[0].usage.input_tokens < called[1].usage.input_tokens < called[2].usage.input_tokens
    assert turn.number == 3


async def test_begin_is_idempotent_and_one_turn_runs_at_a_time(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    first = await stack.send(session, "go", idempotency_key="k1")
    again = await stack.send(session, "go", idempotency_key="k1")
    assert again.turn.turn_id == first.turn.turn_id and not again.created
    with pytest.raises(IdempotencyMismatch):
        await stack.send(session, "something else", idempotency_key="k1")
    with pytest.raises(TurnRunning) as refused:
        await stack.send(session, "another")
    assert refused.value.turn_id == first.turn.turn_id
    by_id = await stack.send(session, "go", turn_id=first.turn.turn_id, idempotency_key="k1")
    assert by_id.turn.turn_id == first.turn.turn_id and not by_id.created


async def test_a_turn_with_a_script_that_is_sent_again_is_found_whatever_the_configuration_says_now(
    stack: Stack, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    text = script({"text": "Here I am."})
    first = await stack.send(session, "go", script=text, idempotency_key="k1")
    parts = stack.parts
    later = TurnService(parts.ledger, parts.contents, parts.clock, UuidIds(), {}, parts.gateway.validate)
    again = await later.begin(BeginTurn(session, "go", script=text, idempotency_key="k1"))
    assert again.turn.turn_id == first.turn.turn_id and not again.created
    with pytest.raises(IdempotencyMismatch):
        await later.begin(BeginTurn(session, "go", script=script({"text": "Other."}), idempotency_key="k1"))


async def test_bad_requests_leave_nothing_behind(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    with pytest.raises(InvalidInput):
        await stack.send(session, "  ")
    with pytest.raises(AgentUnknown):
        await stack.send(session, "go", agent="nobody")
    with pytest.raises(InvalidInput):
        await stack.send(session, "go", turn_id="../x")
    await stack.sessions.close(session)
    with pytest.raises(SessionClosed):
        await stack.send(session, "go")
    assert (await stack.turns.page(session)) == []
    assert [event.TYPE for event in await events_of(stack, session)] == ["session.opened", "session.closed"]


async def test_refused_calls_go_back_to_the_model_as_errors(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    responses = script(
        {"calls": [call("no_such_tool", x=1), {"tool": "bash", "args": '{"command": "unfini'}]},
        {"calls": [call("bash", command="cut"), call("bash", command="off")], "cut": "length"},
        {"text": "I see."},
    )
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED, turn.error_message
    assert session not in sandboxes.by_session or sandboxes.by_session[session].commands() == []
    finished = [event for event in await events_of(stack, session) if isinstance(event, ToolFinished)]
    assert len(finished) == 4
    assert all(event.is_error for event in finished)
    assert "no_such_tool" in finished[0].output.text


async def test_the_same_parse_failure_twice_ends_the_turn_with_the_reason(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    responses = script(
        {"calls": [call("write_file", path="a", content="x" * 100)], "cut": "length"},
        {"calls": [call("write_file", path="a", content="x" * 50)], "cut": "length"},
        {"text": "never"},
    )
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        turn = await stack.ended(begun.turn.turn_id)
    assert (turn.state, turn.error_code) == (TurnState.FAILED, "loop_guard")
    assert "twice in a row, with the same fault (write_file)" in (turn.error_message or "")
    assert session not in sandboxes.by_session


async def test_arguments_that_were_encoded_twice_are_repaired_and_that_is_recorded(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    responses = script({"calls": [{"tool": "bash", "args": json.dumps('{"command": "make"}')}]}, {"text": "ok"})
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        await stack.ended(begun.turn.turn_id)
    (finished,) = [event for event in await events_of(stack, session) if isinstance(event, ToolFinished)]
    assert finished.detail["repaired"] is True
    assert sandboxes.by_session[session].commands() == ["make"]


async def test_the_loop_guard_ends_a_turn_in_circles(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    same = {"calls": [call("bash", command="ls")]}
    async with stack.worker():
        begun = await stack.send(session, script=script(*[same] * 10))
        turn = await stack.ended(begun.turn.turn_id)
    assert (turn.state, turn.error_code) == (TurnState.FAILED, "loop_guard")
    assert "3 times" in (turn.error_message or "")


async def test_too_many_calls_are_refused_before_any_runs(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    many = {"calls": [call("bash", command=f"echo {index}") for index in range(129)]}
    async with stack.worker():
        begun = await stack.send(session, script=script(many))
        turn = await stack.ended(begun.turn.turn_id)
    assert (turn.state, turn.error_code) == (TurnState.FAILED, "too_many_tool_calls")
    assert session not in sandboxes.by_session


async def test_a_failing_provider_is_retried_by_class(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    responses = script(
        {"fail": {"status": 429, "retry_after": 0.2}, "text": "after the wait"},
    )
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        turn = await stack.ended(begun.turn.turn_id)
        denied = await stack.send(session, script=script({"fail": {"status": 401}, "text": "never"}))
        refused = await stack.ended(denied.turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    types = [event.TYPE for event in await events_of(stack, session)]
    assert types.count("model.retried") == 1
    assert (refused.state, refused.error_code) == (TurnState.FAILED, "model_unauthorized")
    assert types.count("model.failed") == 1


async def test_without_a_sandbox_the_agent_works_without_tools(stack_without_sandbox: Stack, tmp_path: Path) -> None:
    stack = stack_without_sandbox
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"text": "just talk"}))
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    entry = (await stack.history.page(session)).entries[0]
    assert "sandbox" in entry.agents[0].notes[0]
