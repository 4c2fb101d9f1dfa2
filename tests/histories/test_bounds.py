"""However much a turn moves, its history stays small, and the ledger has all of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from milepost.domain.content import PREVIEW_LIMIT_BYTES
from milepost.domain.effects import EffectState
from milepost.domain.errors import ModelRequestRejected, ModelUnavailable
from milepost.domain.events import Event, ModelCalled, ModelFailed, ModelRetried, ToolFinished
from milepost.domain.messages import ToolMessage
from milepost.domain.tools import (
    MAX_CALLS_PER_RESPONSE,
    MAX_ERROR_TEXT_BYTES,
    MAX_TOOL_ARGUMENTS_BYTES,
    MAX_TOOL_NAME_BYTES,
)
from milepost.domain.turns import Turn, TurnState
from milepost.ledger.chain import verify_chain
from milepost.ledger.codec import decode_event
from milepost.ledger.history import CARD_PREVIEW_CHARACTERS, HistoryEntry
from milepost.services.contents import text_bytes
from milepost.temporal.client import TemporalAddress
from tests.histories.bounds import MAX_EVENT_BYTES, oversize
from tests.histories.scenarios import (
    BIG_OUTPUT,
    MIB,
    TEN_CALLS,
    Answers,
    Scenario,
    Step,
    call,
    huge,
    play,
    sized_arguments,
    stack_of,
)
from tests.support.sandboxes import MemorySandbox
from tests.support.temporal import Stack


@dataclass
class Played:
    """What is left of a turn."""

    turn: Turn
    stack: Stack
    sandbox: MemorySandbox | None
    history: WorkflowHistory
    events: list[Event]
    entry: HistoryEntry

    @property
    def finished(self) -> list[ToolFinished]:
        """Ends of calls in the order of the calls."""
        ends = [event for event in self.events if isinstance(event, ToolFinished)]
        return sorted(ends, key=lambda end: (end.round, end.index))

    async def whole(self, finished: ToolFinished) -> str:
        """The output of a call as a person gets it: by its effect id, from ledger and blobs alone."""
        result = await self.stack.history.tool_result(finished.effect_id)
        return await self.stack.parts.contents.load(result.full_output or result.output)


Play = Callable[..., Awaitable[Played]]


@pytest.fixture
async def played(sqlite_url: str, tmp_path: Path, temporal_address: TemporalAddress) -> AsyncIterator[Play]:
    """`await played(*steps, state=...)` does a turn and checks what holds for every one."""
    async with AsyncExitStack() as opened:

        async def run(*steps: Step, state: TurnState = TurnState.COMPLETED) -> Played:
            context = stack_of(steps, sqlite_url, tmp_path / "blobs", temporal_address)
            stack, sandboxes = await opened.enter_async_context(context)
            turn = await play(Scenario("bounds", steps, state), stack, sandboxes, tmp_path)
            history = await stack.client.get_workflow_handle(turn.workflow_id).fetch_history()
            assert oversize(history) == []
            stored = await stack.parts.ledger.read(lambda tx: tx.events.read(turn.session_id, limit=10_000))
            verify_chain(stored)
            events = [decode_event(item.type, item.version, item.payload) for item in stored]
            for effect in await stack.history.effects(turn.session_id):
                assert len(text_bytes(effect.error_message or "")) <= MAX_ERROR_TEXT_BYTES
                assert effect.state is not EffectState.DISPATCHED
            entry = await stack.history.entry(turn.turn_id)
            for card in entry.tools:
                assert len(card.preview) <= CARD_PREVIEW_CHARACTERS and len(card.arguments) <= CARD_PREVIEW_CHARACTERS
            return Played(turn, stack, sandboxes.by_session.get(turn.session_id), history, events, entry)

        yield run


def test_the_control_finds_an_oversize_event() -> None:
    small, large = HistoryEvent(event_id=1), HistoryEvent(event_id=2)
    large.workflow_task_failed_event_attributes.failure.message = "x" * (MAX_EVENT_BYTES + 1)
    assert len(oversize(WorkflowHistory("w", [small, large]))) == 1


async def test_ten_calls_with_a_big_output(played: Play) -> None:
    turn = await played(Step("Looking.", TEN_CALLS), Step("Done."))
    assert [event.tool for event in turn.finished] == [tool for tool, *_ in TEN_CALLS]
    big = turn.finished[6]
    assert (big.state, big.detail["exit_code"]) == (EffectState.SUCCEEDED, 0)
    assert await turn.whole(big) == "x" * BIG_OUTPUT
    assert len(big.output.text.encode()) <= PREVIEW_LIMIT_BYTES
    assert big.full_output is not None and big.full_output.blob is not None
    assert big.full_output.text == ""
    assert big.full_output.blob.size == BIG_OUTPUT
    assert big.full_output.blob.digest == hashlib.sha256(b"x" * BIG_OUTPUT).hexdigest()
    assert turn.entry.tools[6].truncated
    assert turn.finished[9].is_error and "no_such_tool" in turn.finished[9].output.text
    assert turn.entry.output.text == "Done."


async def test_arguments_of_the_accepted_size_reach_the_tool_whole(played: Play) -> None:
    arguments = sized_arguments(MAX_TOOL_ARGUMENTS_BYTES)
    turn = await played(Step(calls=(("write_file", arguments),)), Step("Written."))
    assert not turn.finished[0].is_error, turn.finished[0].output.text[:500]
    assert turn.sandbox is not None
    assert turn.sandbox.files["big.txt"] == json.loads(arguments)["content"].encode()
    recorded = next(event for event in turn.events if isinstance(event, ModelCalled) and event.message.calls)
    kept = recorded.message.calls[0].arguments
    assert kept.blob is not None and kept.blob.size == 16 * MIB
    assert len(kept.text) <= PREVIEW_LIMIT_BYTES
    assert await turn.stack.parts.contents.load(kept) == arguments, "kept byte for byte"
    (effect,) = [each for each in await turn.stack.history.effects(turn.turn.session_id) if each.spec.call_id]
    assert effect.spec.arguments == kept


async def test_arguments_over_the_accepted_size_are_refused_with_tool_field_and_bytes(played: Play) -> None:
    size = MAX_TOOL_ARGUMENTS_BYTES + 1
    turn = await played(
        Step(calls=(call("bash", command="ls"), ("write_file", sized_arguments(size)))), state=TurnState.FAILED
    )
    assert turn.turn.error_code == "payload_too_large"
    message = turn.turn.error_message or ""
    assert "write_file" in message and "'arguments'" in message
    assert str(size) in message and str(MAX_TOOL_ARGUMENTS_BYTES) in message
    assert turn.sandbox is None, "no call of the answer was run"
    assert turn.finished == [] and turn.entry.tools == ()


async def test_an_argument_over_its_tools_own_limit_goes_back_to_the_model(played: Play) -> None:
    content = "x" * (8 * MIB + 1)
    turn = await played(Step(calls=(call("write_file", path="a.txt", content=content),)), Step("I will split it."))
    (refused,) = turn.finished
    assert refused.is_error
    for word in ("write_file", "'content'", str(len(content)), str(8 * MIB)):
        assert word in refused.output.text
    assert turn.sandbox is None


@pytest.mark.parametrize("size", [1 * MIB, 5 * MIB])
async def test_a_failure_with_a_huge_message(played: Play, size: int) -> None:
    turn = await played(
        Step("So far ", failures=(huge(ModelUnavailable, size), huge(ModelRequestRejected, size))),
        state=TurnState.FAILED,
    )
    assert turn.turn.error_code == "model_request_rejected"
    assert len((turn.turn.error_message or "").encode()) <= MAX_ERROR_TEXT_BYTES
    said = [event for event in turn.events if isinstance(event, ModelFailed | ModelRetried)]
    assert [type(event) for event in said] == [ModelRetried, ModelFailed]
    for event in said:
        assert 1_000 < len(event.error_message.encode()) <= MAX_ERROR_TEXT_BYTES


async def test_an_error_nobody_foresaw_with_a_huge_message_in_each_of_its_causes(played: Play) -> None:
    error = RuntimeError("🚧" * MIB)
    cause: Exception = ValueError("€" * MIB)
    error.__cause__ = cause
    for _ in range(20):
        cause.__cause__ = cause = RuntimeError("x" * MIB)
    turn = await played(Step("In spite of it.", failures=(error,)))
    assert turn.entry.output.text == "In spite of it."
    assert turn.entry.agents[0].retries == 1


async def test_as_many_calls_as_are_accepted_with_names_and_ids_as_long_as_they_may_be(played: Play) -> None:
    names = [f"{index:04}" + "n" * (MAX_TOOL_NAME_BYTES - 4) for index in range(MAX_CALLS_PER_RESPONSE)]
    calls = tuple((name, "{}", f"{index:04}" + "i" * 252) for index, name in enumerate(names))
    turn = await played(Step(calls=calls), Step("There are no such tools."))
    assert [event.tool for event in turn.finished] == names
    assert [event.call_id for event in turn.finished] == [call_id for _, _, call_id in calls]
    assert all(event.is_error for event in turn.finished)


async def test_a_name_over_its_limit_is_refused(played: Play) -> None:
    turn = await played(Step(calls=(("n" * (MAX_TOOL_NAME_BYTES + 1), "{}"),)), state=TurnState.FAILED)
    assert turn.turn.error_code == "payload_too_large"
    assert str(MAX_TOOL_NAME_BYTES + 1) in (turn.turn.error_message or "")
    assert len(turn.turn.error_message or "") < 500


async def test_text_that_utf8_lacks_crosses_no_boundary_and_is_kept(played: Play) -> None:
    odd = "half \ud83d of a pair and \0"
    turn = await played(
        Step(
            odd,
            (("bash\ud83d", "{}"), ("bash", json.dumps({"command": "echo"}), "id\udc00")),
        ),
        Step(failures=(ModelUnavailable(odd), ModelRequestRejected(odd))),
        state=TurnState.FAILED,
    )
    assert turn.turn.error_code == "model_request_rejected"
    first = next(event for event in turn.events if isinstance(event, ModelCalled))
    assert first.message.text == odd
    assert [event.tool for event in turn.finished] == ["bash\ud83d", "bash"]
    assert turn.finished[1].call_id == "id\udc00" and not turn.finished[1].is_error
    failed = next(event for event in turn.events if isinstance(event, ModelFailed))
    assert failed.error_message == odd


async def test_the_next_model_call_gets_outputs_bounded_and_arguments_whole(played: Play) -> None:
    turn = await played(Step("Looking.", TEN_CALLS), Step("Done."))
    gateway = turn.stack.parts.gateway
    assert isinstance(gateway, Answers)
    sent = gateway.requests[-1].messages
    assert sum(len(part.arguments.text) for message in sent for part in getattr(message, "calls", ())) > 16 * MIB
    results = [message for message in sent if isinstance(message, ToolMessage)]
    assert len(results) == 10
    assert all(len(message.text.text.encode()) <= PREVIEW_LIMIT_BYTES for message in results)
