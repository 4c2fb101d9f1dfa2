"""A stop that comes while the sandbox is being opened, before any call is dispatched or after its worker was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from milepost.domain.effects import EffectState
from milepost.domain.errors import SandboxUnavailable
from milepost.domain.events import ToolFinished, ToolStarted
from milepost.domain.turns import TurnState
from milepost.ports.sandbox import Sandbox, SandboxSpec
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.test_turns import call, events_of, script

pytestmark = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)

Ask = Callable[[Stack, str, str], Awaitable[object]]


class Slow:
    """Holds up every opening until it is released, or refuses it."""

    def __init__(self, sandboxes: MemorySandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = asyncio.Event()
        self.release = asyncio.Event()
        self.error: SandboxUnavailable | None = None
        self._open = sandboxes.open
        monkeypatch.setattr(sandboxes, "open", self.open)

    async def open(self, spec: SandboxSpec) -> Sandbox:
        self.asked.set()
        if self.error is not None:
            raise self.error
        await self.release.wait()
        return await self._open(spec)


@pytest.fixture
def slow(sandboxes: MemorySandboxes, monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(sandboxes, monkeypatch)


async def by_stop(stack: Stack, turn_id: str, _workflow_id: str) -> None:
    await stack.turns.stop(turn_id, actor="test")


async def by_cancellation(stack: Stack, _turn_id: str, workflow_id: str) -> None:
    await stack.client.get_workflow_handle(workflow_id).cancel()


@pytest.mark.parametrize("ask", [by_stop, by_cancellation])
async def test_a_stop_while_the_sandbox_opens_runs_nothing(
    stack: Stack, sandboxes: MemorySandboxes, slow: Slow, tmp_path: Path, ask: Ask
) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"calls": [call("bash", command="never")]}))
        await asyncio.wait_for(slow.asked.wait(), 30)
        await ask(stack, begun.turn.turn_id, begun.turn.workflow_id)
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.STOPPED
    assert sandboxes.by_session == {}, "the opening was given up"
    finished = [event for event in await events_of(stack, session) if isinstance(event, ToolFinished)]
    assert [event.state for event in finished] == [EffectState.CANCELLED]
    assert await stack.history.effects(session, state=EffectState.DISPATCHED) == []


async def test_a_stop_after_a_lost_worker_kills_what_still_runs(
    stack: Stack, sandboxes: MemorySandboxes, slow: Slow, tmp_path: Path
) -> None:
    slow.release.set()
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"calls": [call("bash", command="hang on")]}))
        await running(sandboxes, session)
    slow.release.clear()
    slow.asked.clear()
    async with stack.worker():
        await asyncio.wait_for(slow.asked.wait(), 30)
        await stack.turns.stop(begun.turn.turn_id, actor="test")
        slow.release.set()
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.STOPPED
    sandbox = sandboxes.by_session[session]
    assert sandbox.commands() == ["hang on"]
    assert all(future.done() for future in sandbox.outcomes.values()), "the command was killed"


async def test_a_sandbox_that_cannot_be_asked_leaves_the_outcome_open(
    stack: Stack, sandboxes: MemorySandboxes, slow: Slow, tmp_path: Path
) -> None:
    slow.release.set()
    session = await stack.open(tmp_path)
    responses = script({"calls": [call("bash", command="hang on")]}, {"text": "I will check."})
    async with stack.worker():
        begun = await stack.send(session, script=responses)
        await running(sandboxes, session)
    slow.error = SandboxUnavailable("Podman is gone.")
    async with stack.worker():
        turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    finished = [event for event in await events_of(stack, session) if isinstance(event, ToolFinished)]
    assert [event.state for event in finished] == [EffectState.UNCERTAIN]
    assert sandboxes.by_session[session].commands() == ["hang on"]


async def test_a_dispatch_names_the_supervisor_it_is_meant_for(
    stack: Stack, sandboxes: MemorySandboxes, slow: Slow, tmp_path: Path
) -> None:
    slow.release.set()
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"calls": [call("bash", command="ls")]}, {"text": "Done."}))
        await stack.ended(begun.turn.turn_id)
    started = [event for event in await events_of(stack, session) if isinstance(event, ToolStarted)]
    assert [event.sandbox for event in started] == [sandboxes.by_session[session].boot]


async def running(sandboxes: MemorySandboxes, session: str) -> None:
    """Wait until the Session's command runs."""
    async with asyncio.timeout(30):
        while not (session in sandboxes.by_session and sandboxes.by_session[session].commands()):
            await asyncio.sleep(0.02)
