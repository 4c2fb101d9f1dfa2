"""Containers that no turn needs do not stay behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

from milepost.domain.turns import TurnState
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.test_turns import call, script


async def one_command(stack: Stack, folder: Path, command: str = "ls") -> tuple[str, str]:
    await asyncio.to_thread(folder.mkdir)
    session = await stack.open(folder)
    begun = await stack.send(session, script=script({"calls": [call("bash", command=command)]}, {"text": "Done."}))
    return session, begun.turn.turn_id


async def test_a_worker_that_leaves_removes_all_but_those_at_work(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    async with stack.worker():
        idle, first = await one_command(stack, tmp_path / "a")
        assert (await stack.ended(first)).state is TurnState.COMPLETED
        busy, second = await one_command(stack, tmp_path / "b", "hang on")
        async with asyncio.timeout(30):
            while not (busy in sandboxes.by_session and sandboxes.by_session[busy].commands()):
                await asyncio.sleep(0.02)
        assert idle in await sandboxes.sessions()
    assert await sandboxes.sessions() == {busy}
    await stack.turns.stop(second, actor="test")
    async with stack.worker():
        assert (await stack.ended(second)).state is TurnState.STOPPED


async def test_serving_removes_those_of_closed_sessions_only(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    async with stack.worker():
        closed, first = await one_command(stack, tmp_path / "a")
        kept, second = await one_command(stack, tmp_path / "b")
        await stack.ended(first)
        await stack.ended(second)
        await stack.sessions.close(closed)
        assert await stack.parts.workbench.tidy(stack.parts.ledger) == 1
        assert await sandboxes.sessions() == {kept}
