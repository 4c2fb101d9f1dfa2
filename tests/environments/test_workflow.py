"""`EnvironmentWorkflow` on a real server: prepared once, stopped, superseded, lost, and found again after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.contracts.naming import environment_workflow_id
from milepost.domain.environments import Environment, EnvironmentState
from milepost.domain.turns import TurnState
from milepost.ports.sandbox import Volume
from milepost.services.environments import ChangeEnvironment, ReviewEnvironment
from milepost.services.workbench import fitted
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.test_turns import call, script

ME = "ann"


async def proposed(stack: Stack, folder: Path, command: str = "make deps") -> str:
    """A Session whose folder proposes a command."""
    await asyncio.to_thread((folder / ".devcontainer.json").write_text, f'{{"postCreateCommand": "{command}"}}')
    session_id = await stack.open(folder)
    assert (await stack.environments.prepare(session_id, ME)).state is EnvironmentState.AWAITING_APPROVAL
    return session_id


async def approve(stack: Stack, session_id: str, command: str | None = None) -> Environment:
    return await stack.environments.review(session_id, ReviewEnvironment(True, ME, command=command))


async def begun(sandboxes: MemorySandboxes, session_id: str, count: int = 1) -> None:
    """Wait until the setup command runs."""
    async with asyncio.timeout(30):
        while not (box := sandboxes.by_session.get(session_id)) or len(box.journal) < count:
            await asyncio.sleep(0.02)


async def test_an_approved_command_runs_once_and_is_kept(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session_id = await proposed(stack, tmp_path)
    async with stack.worker():
        await approve(stack, session_id)
        ready = await stack.settled(session_id)
        turn = await stack.send(session_id, script=script({"calls": [call("bash", command="ls")]}, {"text": "Done."}))
        assert (await stack.ended(turn.turn.turn_id)).state is TurnState.COMPLETED
    assert ready.state is EnvironmentState.READY
    assert ready.result is not None
    assert ready.result.output is not None
    assert (ready.result.exit_code, ready.result.output.text) == (0, "ran make deps\n")
    assert sandboxes.by_session[session_id].commands() == ["make deps", "ls"]
    workflow_id = environment_workflow_id(stack.parts.ledger.instance_id, f"{session_id}/1")
    result = await stack.client.get_workflow_handle(workflow_id).result()
    assert result["state"] == "ready"


async def test_tools_are_refused_and_the_model_is_told_what_to_do(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session_id = await proposed(stack, tmp_path)
    async with stack.worker():
        turn = await stack.send(session_id, script=script({"calls": [call("bash", command="ls")]}, {"text": "Sorry."}))
        assert (await stack.ended(turn.turn.turn_id)).state is TurnState.COMPLETED
    entry = await stack.history.entry(turn.turn.turn_id)
    assert "awaiting approval" in entry.tools[0].preview
    assert f"milepost env review {session_id}" in entry.tools[0].preview
    assert not sandboxes.by_session


async def test_a_command_that_fails_leaves_evidence_and_nothing_else(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session_id = await proposed(stack, tmp_path, "exit 3")
    async with stack.worker():
        await approve(stack, session_id)
        failed = await stack.settled(session_id)
        assert failed.result is not None
        assert (failed.state, failed.result.exit_code) == (EnvironmentState.FAILED, 3)
        assert failed.result.output is not None
        assert "failed" in failed.result.output.text
        assert session_id in sandboxes.removed
        await stack.environments.change(session_id, ChangeEnvironment(ME, command="big 3000000"))
        await approve(stack, session_id)
        ready = await stack.settled(session_id)
    assert (ready.generation, ready.state) == (2, EnvironmentState.READY)
    assert ready.result is not None
    assert ready.result.output is not None
    assert ready.result.output.blob is not None
    assert ready.result.output.blob.size < 1_100_000
    assert "bytes left out" in await stack.parts.contents.load(ready.result.output)


async def test_stopping_kills_the_command(stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path) -> None:
    session_id = await proposed(stack, tmp_path, "hang on")
    async with stack.worker():
        await approve(stack, session_id)
        await begun(sandboxes, session_id)
        await stack.environments.stop(session_id, ME)
        async with asyncio.timeout(30):
            while session_id not in sandboxes.removed:
                await asyncio.sleep(0.05)
    found = await stack.environments.get(session_id)
    assert found.result is not None
    assert (found.state, found.result.error_code) == (EnvironmentState.FAILED, "environment_stopped")


async def test_a_worker_that_is_killed_in_the_middle_attaches_to_the_same_command(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session_id = await proposed(stack, tmp_path, "hang on")
    async with stack.worker(grace=0):
        await approve(stack, session_id)
        await begun(sandboxes, session_id)
    assert (await stack.environments.get(session_id)).state is EnvironmentState.PREPARING
    box = sandboxes.by_session[session_id]
    (effect_id, _), *_ = box.journal
    async with stack.worker():
        async with asyncio.timeout(30):
            while (await stack.environments.get(session_id)).boot is None:
                await asyncio.sleep(0.05)
        from milepost.ports.sandbox import Outcome

        box.outcomes[effect_id].set_result(Outcome(exit_code=0, stdout=b"at last\n"))
        ready = await stack.settled(session_id)
    assert ready.state is EnvironmentState.READY
    assert len(box.journal) == 1, "it ran once"
    assert sandboxes.by_session[session_id] is box


async def test_a_container_that_is_lost_in_the_middle_is_a_failure_that_says_so(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session_id = await proposed(stack, tmp_path, "hang on")
    async with stack.worker(grace=0):
        await approve(stack, session_id)
        await begun(sandboxes, session_id)
    sandboxes.by_session[session_id].lost = True
    async with stack.worker():
        failed = await stack.settled(session_id)
        assert failed.result is not None
        assert (failed.state, failed.result.error_code) == (EnvironmentState.FAILED, "environment_lost")
        await stack.environments.change(session_id, ChangeEnvironment(ME, command="make deps"))
        await approve(stack, session_id)
        assert (await stack.settled(session_id)).state is EnvironmentState.READY


async def test_a_workflow_that_is_gone_ends_the_preparation(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session_id = await proposed(stack, tmp_path, "hang on")
    async with stack.worker(grace=0):
        await approve(stack, session_id)
        await begun(sandboxes, session_id)
    workflow_id = environment_workflow_id(stack.parts.ledger.instance_id, f"{session_id}/1")
    await stack.client.get_workflow_handle(workflow_id).terminate("test")
    async with stack.worker():
        failed = await stack.settled(session_id)
    assert failed.result is not None
    assert "terminated in Temporal" in str(failed.result.error)


@pytest.mark.parametrize("node", [False, True])
async def test_what_the_container_gets(stack: Stack, tmp_path: Path, node: bool) -> None:
    if node:
        await asyncio.to_thread((tmp_path / "package.json").write_text, "{}")
    session_id = await proposed(stack, tmp_path)
    found = await stack.environments.review(session_id, ReviewEnvironment(True, ME, ports=(80,), image="alpine:3.20"))
    session = await stack.sessions.get(session_id)
    spec = fitted(stack.parts.workbench._spec_of(session), found)
    assert spec.volumes == ({Volume.HOME, Volume.NODE_MODULES} if node else {Volume.HOME})
    assert (spec.image, spec.ports, spec.generation, spec.fresh) == ("alpine:3.20", (80,), 1, True)
