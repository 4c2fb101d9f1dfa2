"""`read_output` and `search_output`: what was recorded of earlier calls is found and read again, whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milepost.domain.errors import ToolRejected
from milepost.domain.events import AgentStarted, ToolFinished
from milepost.domain.outputs import Output, OutputRef
from milepost.domain.turns import TurnState
from milepost.services.rewinds import RewindService, RewindTo
from milepost.tools import plan
from milepost.tools.outputs import render_slice
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.test_turns import call, events_of, script

SIZE = 200_000


async def _finished(stack: Stack, session: str, tool: str) -> list[ToolFinished]:
    events = await events_of(stack, session)
    found = [event for event in events if isinstance(event, ToolFinished) and event.tool == tool]
    return sorted(found, key=lambda event: event.index)


async def test_a_shortened_output_is_read_whole_in_later_turns(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        first = await stack.send(
            session,
            script=script(
                {"calls": [call("bash", command="make"), call("bash", command=f"big {SIZE}")]}, {"text": "ok"}
            ),
        )
        await stack.ended(first.turn.turn_id)
        later = [
            call("search_output", query="RAN MAKE"),
            call("read_output", ref="1.1.2", offset=SIZE - 10),
            call("read_output", ref="1.1.2", limit=5),
            call("read_output", ref="1.1.9"),
            call("search_output", query="xxxx", ref="1.1.2"),
            call("search_output", query="nowhere"),
        ]
        second = await stack.send(session, script=script({"calls": later}, {"text": "Done."}))
        turn = await stack.ended(second.turn.turn_id)
    assert turn.state is TurnState.COMPLETED, turn.error_message
    searched = [event.output.text for event in await _finished(stack, session, "search_output")]
    read = await _finished(stack, session, "read_output")
    assert searched[0] == "1.1.1 bash @0: ran make"
    assert searched[1].startswith("1.1.2 bash @0: xxxx")
    assert searched[2].startswith("[no output has this text; 2 calls searched]")
    assert read[0].output.text == (
        f"{'x' * 10}\n[characters {SIZE - 10}-{SIZE - 1} of {SIZE} of output 1.1.2 of bash; this is the end]"
    )
    assert read[1].output.text.startswith("xxxxx\n[characters 0-4 of") and "offset=5" in read[1].output.text
    assert read[2].is_error and "no output 1.1.9" in read[2].output.text
    assert len(sandboxes.by_session[session].commands()) == 2, "reading needs no sandbox"


async def test_a_shortened_result_names_its_ref(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"calls": [call("bash", command=f"big {SIZE}")]}, {"text": ""}))
        await stack.ended(begun.turn.turn_id)
    from activities.conversation import Conversations

    context = await Conversations(stack.parts.ledger, stack.parts.contents).whole(begun.turn.turn_id, "default", 2)
    assert context.messages[-1].text.text.endswith("[shortened; read_output has all of it under ref 1.1.1]")


async def test_without_a_sandbox_outputs_can_be_read(stack_without_sandbox: Stack, tmp_path: Path) -> None:
    stack = stack_without_sandbox
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"calls": [call("search_output", query="a")]}, {"text": "ok"}))
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED, turn.error_message
    started = next(event for event in await events_of(stack, session) if isinstance(event, AgentStarted))
    assert [tool.name for tool in started.tools] == ["read_output", "search_output"]
    assert started.tools_unavailable


async def test_outputs_that_a_rewind_took_back_are_not_found(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        for command in ("kept", "taken"):
            begun = await stack.send(session, script=script({"calls": [call("bash", command=command)]}, {"text": "ok"}))
            await stack.ended(begun.turn.turn_id)
        parts = stack.parts
        rewinds = RewindService(parts.ledger, parts.clock, stack.sessions._ids, None, networked=False)
        await rewinds.rewind(RewindTo(session, "test", number=1))
        asked = [call("search_output", query="ran"), call("read_output", ref="2.1.1")]
        begun = await stack.send(session, script=script({"calls": asked}, {"text": "ok"}))
        await stack.ended(begun.turn.turn_id)
    (searched,) = await _finished(stack, session, "search_output")
    (read,) = await _finished(stack, session, "read_output")
    assert searched.output.text == "1.1.1 bash @0: ran kept"
    assert read.is_error


def test_a_ref_has_three_numbers() -> None:
    with pytest.raises(ToolRejected, match="three numbers"):
        plan("read_output", json.dumps({"ref": "call_1"}))


def test_a_piece_of_an_output_fits_the_bound_and_says_where_to_go_on() -> None:
    output = Output(OutputRef(1, 2, 3), "bash", "日" * 100_000)
    shown = render_slice(output, 0, 60_000)
    assert len(shown.text.encode()) <= 64 * 1024
    size = shown.detail["characters"]
    assert f"read on with offset={size}" in shown.text
    rest = render_slice(output, size, 60_000)
    assert rest.text.startswith("日") and rest.detail["characters"] > 0
    assert "has 100000 characters" in render_slice(output, 100_000, 10).text
    assert "is empty" in render_slice(Output(OutputRef(1, 1, 1), "bash", ""), 0, 10).text
