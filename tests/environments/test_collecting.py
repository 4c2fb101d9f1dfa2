"""What of a back end's containers and volumes no Session needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.bootstrap.collecting_sandboxes import unneeded
from milepost.ports.ledger import Ledger
from milepost.ports.sandbox import Holding
from milepost.services.environments import ChangeEnvironment
from tests.environments.test_consent import Bench, folder
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack
from tests.turns.test_tidying import one_command


def container(session_id: str, generation: int = 1, *, running: bool = True) -> Holding:
    return Holding("container", "c", session_id, generation, "", running)


def volume(session_id: str, generation: int = 1) -> Holding:
    return Holding("volume", "v", session_id, generation, "")


async def test_what_goes_and_what_stays(ledger: Ledger, tmp_path: Path) -> None:
    bench = Bench(ledger)
    session_id = (await bench.open(folder(tmp_path))).session_id

    async def goes(holding: Holding) -> bool:
        return await ledger.read(lambda tx: unneeded(tx, holding))

    assert await goes(container("ses_unknown")) and await goes(volume("ses_unknown"))
    assert not await goes(container(session_id)) and not await goes(volume(session_id))
    assert await goes(container(session_id, running=False))
    found = await bench.environments.change(session_id, ChangeEnvironment("ann", image="alpine:3.20"))
    assert not await goes(container(session_id, 1)), "it is being prepared"
    await bench.finish(found)
    found = await bench.environments.rebuild(session_id, "ann")
    await bench.finish(found)
    assert await goes(container(session_id, 1)) and await goes(volume(session_id, 1))
    assert not await goes(container(session_id, 2)) and not await goes(volume(session_id, 2))
    await bench.sessions.close(session_id)
    assert await goes(container(session_id, 2))
    assert not await goes(volume(session_id, 2)), "it may be reopened"


async def test_a_container_that_nothing_uses_for_long_is_removed(
    stack: Stack, sandboxes: MemorySandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.worker():
        session_id, turn_id = await one_command(stack, tmp_path / "a")
        await stack.ended(turn_id)
        workbench = stack.parts.workbench
        assert await workbench.tidy(stack.parts.ledger) == 0
        monkeypatch.setattr(workbench, "_idle_seconds", -1.0)
        assert await workbench.tidy(stack.parts.ledger) == 1
        assert session_id in sandboxes.removed
        busy, turn_id = await one_command(stack, tmp_path / "b", "hang on")
        while busy not in sandboxes.by_session:
            await stack.parts.notifier.subscribe(busy).wait(0.1)
        assert await workbench.tidy(stack.parts.ledger) == 0
        await stack.turns.stop(turn_id, actor="test")
        await stack.ended(turn_id)
