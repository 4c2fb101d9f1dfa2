"""The working directory of an agent's commands: kept from call to call, and what the ledger says it is."""

from __future__ import annotations

from pathlib import Path

from milepost.domain.processes import ShellMoved
from milepost.domain.turns import TurnState
from milepost.ports.sandbox import Exec
from milepost.services.rewinds import RewindService, RewindTo
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.test_turns import call, events_of, script


async def _run(stack: Stack, session: str, *commands: str) -> None:
    steps = [{"calls": [call("bash", command=command)]} for command in commands]
    begun = await stack.send(session, script=script(*steps, {"text": "ok"}))
    turn = await stack.ended(begun.turn.turn_id)
    assert turn.state is TurnState.COMPLETED, turn.error_message


def _places(sandboxes: MemorySandboxes, session: str) -> list[tuple[str, str]]:
    journal = sandboxes.by_session[session].journal
    return [(operation.command, operation.cwd) for _, operation in journal if isinstance(operation, Exec)]


async def test_a_directory_holds_for_later_calls_turns_workers_and_containers(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        await _run(stack, session, "ls", "cd sub/dir", "ls", "cd ..", "false")
    assert _places(sandboxes, session) == [
        *(("ls", "."), ("cd sub/dir", "."), ("ls", "sub/dir"), ("cd ..", "sub/dir"), ("false", "sub"))
    ]
    await sandboxes.remove(session)
    async with stack.worker():
        await _run(stack, session, "make", "cd /tmp", "ls")
    assert _places(sandboxes, session) == [("make", "sub"), ("cd /tmp", "sub"), ("ls", ".")]
    moves = [event for event in await events_of(stack, session) if isinstance(event, ShellMoved)]
    assert [event.cwd for event in moves] == ["sub/dir", "sub", "."]


async def test_a_rewind_takes_it_back(stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path) -> None:
    session = await stack.open(tmp_path)
    async with stack.worker():
        await _run(stack, session, "cd one")
        await _run(stack, session, "cd ../two")
        parts = stack.parts
        rewinds = RewindService(parts.ledger, parts.clock, stack.sessions._ids, None, networked=False)
        await rewinds.rewind(RewindTo(session, "test", number=1))
        await _run(stack, session, "pwd")
    assert _places(sandboxes, session)[-1] == ("pwd", "one")
