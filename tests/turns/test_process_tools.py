"""Terminals and background commands of agents: run once, found again, told in the stream, ended with their sandbox."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.domain.approvals import PolicyRule, Verdict
from milepost.domain.errors import ProcessNotFound, SandboxLost, SandboxUnavailable
from milepost.domain.events import ToolFinished, ToolStarted
from milepost.domain.processes import ProcessEnded, ProcessEnding, ProcessKind, ProcessRecord, ProcessStarted
from milepost.domain.tools import Approval, tool_approval
from milepost.domain.turns import TurnState
from milepost.ledger.story import Remarks, Story
from milepost.ports.sandbox import ProcessEnd, Spawn, TerminalSize
from milepost.services.processes import NewProcess, ProcessService, new_process_id
from tests.support.sandboxes import MemorySandbox, MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.test_turns import call, events_of, script


class Later:
    """Two hours from now."""

    def now(self) -> int:
        return time.time_ns() // 1000 + 2 * 3600 * 1_000_000


async def _call(stack: Stack, session: str, tool: str, **arguments: Any) -> ToolFinished:
    begun = await stack.send(session, script=script({"calls": [call(tool, **arguments)]}, {"text": "ok"}))
    turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED, turn.error_message
    events = await events_of(stack, session)
    return next(event for event in reversed(events) if isinstance(event, ToolFinished) and event.tool == tool)


def service(stack: Stack, host: str | None = None) -> ProcessService:
    parts = stack.parts
    return ProcessService(parts.ledger, parts.clock, parts.workbench, host or parts.host)


async def by_person(stack: Stack, session_id: str, command: str | None = None) -> ProcessRecord:
    session = await stack.parts.ledger.read(lambda tx: tx.sessions.get(session_id))
    new = NewProcess(new_process_id(), Spawn(command, terminal=TerminalSize()), "ann")
    return await service(stack).start(session, new)


async def test_an_agent_works_with_a_terminal(stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        await _call(stack, session, "bash", command="cd sub")
        started = await _call(stack, session, "spawn_terminal", rows=30, columns=100)
        process_id = started.detail["process_id"]
        typed = await _call(stack, session, "write_terminal", id=process_id, text="echo hi\n")
        shown = await _call(stack, session, "read_terminal", id=process_id)
        listed = await _call(stack, session, "list_terminals")
        ended = await _call(stack, session, "kill_terminal", id=process_id)
        again = await _call(stack, session, "kill_terminal", id=process_id)
        late = await _call(stack, session, "write_terminal", id=process_id, text="x")
    box: MemorySandbox = sandboxes.by_session[session]
    info = box.spawned[process_id].info
    assert (info.terminal, info.cwd, info.ended_by) == (TerminalSize(30, 100), "sub", ProcessEnd.ENDED)
    assert "echo hi" in typed.output.text and "offset=8" in typed.output.text
    assert shown.output.text.startswith("echo hi") and "running" in shown.output.text
    assert process_id in listed.output.text and "running: a shell" in listed.output.text
    assert not ended.is_error and not again.is_error
    assert late.is_error
    events = [event for event in await events_of(stack, session) if isinstance(event, ProcessStarted | ProcessEnded)]
    assert [event.TYPE for event in events] == ["process.started", "process.ended"]
    assert isinstance(events[0], ProcessStarted) and events[0].by == "agent:default"
    assert isinstance(events[1], ProcessEnded) and events[1].ended_by is ProcessEnding.ENDED


async def test_a_stop_ends_the_wait_for_output_and_not_the_terminal(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        process_id = (await _call(stack, session, "spawn_terminal")).detail["process_id"]
        calls = [call("read_terminal", id=process_id, offset=0, wait=30), call("bash", command="never")]
        begun = await stack.send(session, script=script({"calls": calls}, {"text": "no"}))
        async with asyncio.timeout(30):
            while not any(
                isinstance(event, ToolStarted) and event.tool == "read_terminal"
                for event in await events_of(stack, session)
            ):
                await asyncio.sleep(0.02)
        await stack.turns.stop(begun.turn.turn_id, actor="test")
        assert (await stack.ended(begun.turn.turn_id, 20)).state is TurnState.STOPPED
    assert sandboxes.by_session[session].spawned[process_id].info.ended_by is not ProcessEnd.ENDED


async def test_a_background_command_outlives_its_turn_and_its_worker(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await stack.open(tmp_path)
    workbench = stack.parts.workbench

    async def stay(ledger: object, *, leaving: bool = False) -> int:
        return 0

    async with stack.worker():
        started = await _call(stack, session, "bash_background", command="hang on")
        process_id = started.detail["process_id"]
        # Half an hour of nothing else does not end it; the worker does not say goodbye.
        monkeypatch.setattr(workbench, "_idle_seconds", -1.0)
        assert await workbench.tidy(stack.parts.ledger) == 0
        monkeypatch.setattr(workbench, "tidy", stay)
    monkeypatch.undo()
    async with stack.worker():
        sandboxes.by_session[session].spawned[process_id].say(b"\x1b[1mserving\x1b[0m on 8080\n")
        shown = await _call(stack, session, "read_terminal", id=process_id)
        assert shown.output.text.startswith("serving on 8080\n")
        sandboxes.by_session[session].spawned[process_id].finish(ProcessEnd.EXIT, 3)
        await service(stack).refresh_all()
        listed = await _call(stack, session, "list_terminals")
    assert "background, exit code 3: hang on" in listed.output.text


async def test_a_call_that_is_made_again_starts_nothing_twice(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session_id = await stack.open(tmp_path)
    session = await stack.parts.ledger.read(lambda tx: tx.sessions.get(session_id))
    new = NewProcess(new_process_id(), Spawn("hang"), "agent:default", None)
    first = await service(stack).start(session, new)
    assert await service(stack).start(session, new) == first
    assert len(sandboxes.by_session[session_id].spawned) == 1
    sandboxes.by_session[session_id].boot = "memory-2"
    with pytest.raises(SandboxLost):
        await service(stack).start(session, new)
    record = await service(stack).get(session_id, new.process_id)
    assert record.ended_by is ProcessEnding.LOST
    assert await service(stack).start(session, new) == record, "what is lost stays lost"


async def test_an_agent_sees_no_terminal_of_a_person(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    record = await by_person(stack, session)
    async with stack.worker():
        listed = await _call(stack, session, "list_terminals")
        read = await _call(stack, session, "read_terminal", id=record.process_id)
        unknown = await _call(stack, session, "read_terminal", id=new_process_id())
        malformed = await _call(stack, session, "read_terminal", id="1")
    assert listed.output.text == "[none]"
    assert read.is_error and "theirs alone" in read.output.text
    assert unknown.is_error and malformed.is_error and "'prc_" in malformed.output.text


async def test_processes_end_with_their_sandbox_and_the_ledger_says_so(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    record = await by_person(stack, session)
    await sandboxes.remove(session)
    listed = await service(stack).of_session(session)
    assert [(each.process_id, each.ended_by) for each in listed] == [(record.process_id, ProcessEnding.LOST)]
    with pytest.raises(ProcessNotFound):
        await service(stack).read(session, record.process_id, 0, 100)


async def test_another_host_is_named(stack: Stack, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    record = await by_person(stack, session)
    elsewhere = service(stack, "elsewhere")
    assert (await elsewhere.of_session(session))[0].running
    with pytest.raises(SandboxUnavailable, match=stack.parts.host):
        await elsewhere.read(session, record.process_id, 0, 100)
    # A host that never comes back: what it ran has an end when it cannot run any more.
    elsewhere._clock = Later()
    (ended,) = await elsewhere.of_session(session)
    assert ended.ended_by is ProcessEnding.LOST and ended.reason is not None


def test_what_is_said_of_bash_holds_for_all_that_run_what_a_shell_can() -> None:
    for tool in ("bash_background", "spawn_terminal", "write_terminal"):
        assert tool_approval(tool, {}) is Approval.ALLOW
        assert tool_approval(tool, {"bash": Approval.ASK, "*": Approval.ALLOW}) is Approval.ASK
        assert tool_approval(tool, {"bash": Approval.ASK, tool: Approval.ALLOW}) is Approval.ALLOW
    assert tool_approval("read_terminal", {"bash": Approval.ASK}) is Approval.ALLOW


async def test_a_rule_that_denies_bash_denies_terminals(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    rule = PolicyRule("rul_1", None, "bash", Verdict.DENY, once=False, created_at=1, created_by="ann")
    await stack.parts.ledger.write(lambda tx: tx.rules.add(rule))
    async with stack.worker():
        denied = await _call(stack, session, "spawn_terminal")
    assert denied.is_error and "denies it" in denied.output.text
    assert session not in sandboxes.by_session or not sandboxes.by_session[session].spawned


def test_a_story_tells_who_began_what_and_how_it_ended() -> None:
    story = Story(superseded=False)
    started = ProcessStarted("prc_1", ProcessKind.TERMINAL, None, ".", "ann", "here", 1, 60.0)
    background = replace(started, kind=ProcessKind.BACKGROUND, command="make", by="agent:coder")
    told = [block.text for event in (started, background) for block in story.add(event) if isinstance(block, Remarks)]
    assert told == [
        "ann opened a terminal with a shell (prc_1).",
        "agent:coder started in the background `make` (prc_1).",
    ]
    for ended_by in ProcessEnding:
        (block,) = story.add(ProcessEnded("prc_1", ended_by, 3, "ann", "full"))
        assert isinstance(block, Remarks) and block.text.startswith("prc_1 ")
