"""Whole turns on E2B: the exact sandbox is in the ledger, the next worker finds it, and one that is gone has failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.bootstrap.collecting_sandboxes import unneeded
from milepost.domain.environments import EnvironmentState, RemoteSandbox
from milepost.domain.errors import ImageNotAllowed
from milepost.domain.turns import TurnState
from milepost.ports.sandbox import SandboxProvider
from milepost.sandboxes.e2b.provider import refuse_image
from milepost.services.environments import ChangeEnvironment, EnvironmentRules
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.sandbox.e2b.conftest import Make
from tests.support.databases import OpenLedger
from tests.support.e2b import Double
from tests.support.temporal import Stack, build_stack
from tests.turns.conftest import gateway
from tests.turns.test_turns import call, script

__all__ = ["gateway"]


@pytest.fixture
async def stack(
    opened: OpenLedger,
    gateway: object,
    make: Make,
    temporal_address: TemporalAddress,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Stack]:
    blobs = FileBlobStore(tmp_path_factory.mktemp("blobs"))
    provider = make(opened.ledger.instance_id)
    rules = EnvironmentRules(refuse_image, images=False)
    yield await build_stack(
        opened.ledger,
        opened.notifier,
        blobs,
        gateway,  # type: ignore[arg-type]
        provider,
        temporal_address,
        rules=rules,
    )


def provider_of(stack: Stack) -> SandboxProvider:
    provider = stack.parts.workbench._provider
    assert provider is not None
    return provider


async def ran(stack: Stack, session_id: str, command: str) -> str:
    """What a turn's only command printed."""
    turn = await stack.send(session_id, script=script({"calls": [call("bash", command=command)]}, {"text": "Done."}))
    assert (await stack.ended(turn.turn.turn_id)).state is TurnState.COMPLETED
    return (await stack.history.entry(turn.turn.turn_id)).tools[0].preview


async def test_from_the_first_turn_to_a_sandbox_that_is_gone(stack: Stack, double: Double, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from the host\n")
    session_id = await stack.open(tmp_path)
    async with stack.worker():
        assert "from the host" in await ran(stack, session_id, "cat file; echo in > made")
    ready = await stack.environments.get(session_id)
    assert ready.state is EnvironmentState.READY
    assert ready.result is not None
    assert ready.result.sandbox == RemoteSandbox("e2b", double.made[0], "e2b.app", "/home/user/workspace")
    assert double.machines[double.made[0]].state == "paused", "a worker that leaves pauses what it leaves"

    [held] = await provider_of(stack).holdings()
    await stack.sessions.close(session_id)
    assert not await stack.parts.ledger.read(lambda tx: unneeded(tx, held)), "its files are nowhere else"
    await stack.sessions.reopen(session_id)
    assert await stack.parts.ledger.read(lambda tx: unneeded(tx, replace(held, generation=9)))
    assert await stack.parts.ledger.read(lambda tx: unneeded(tx, replace(held, session_id="ses_gone")))

    async with stack.worker():
        assert "in" in await ran(stack, session_id, "cat made")
        assert len(double.made) == 1
        double.expire(double.made[0])
        told = await ran(stack, session_id, "cat made")
        assert f"milepost env rebuild {session_id}" in told
        failed = await stack.environments.get(session_id)
        assert failed.state is EnvironmentState.FAILED
        assert failed.result is not None and failed.result.error_code == "sandbox_missing"
        assert len(double.made) == 1, "nothing takes its place without being asked"

        await stack.environments.rebuild(session_id, "ann")
        again = await stack.settled(session_id)
        assert again.state is EnvironmentState.READY and again.generation == 2
        assert "made" not in await ran(stack, session_id, "ls")
        assert len(double.made) == 2
        with pytest.raises(ImageNotAllowed, match="template"):
            await stack.environments.change(session_id, ChangeEnvironment("ann", image="debian:bookworm-slim"))
        await stack.environments.change(session_id, ChangeEnvironment("ann", ports=(8123,)))
        assert (await stack.settled(session_id)).state is EnvironmentState.READY
        assert set(double.machines) == {double.made[2]}, "the sandbox of the generation before is gone"


async def test_a_command_that_outlives_its_worker_runs_once(stack: Stack, double: Double, tmp_path: Path) -> None:
    session_id = await stack.open(tmp_path)
    command = "echo begun >> ran; for i in $(seq 100); do [ -e go ] && break; sleep 0.1; done; cat ran"
    async with stack.worker(grace=0.2):
        turn = await stack.send(
            session_id, script=script({"calls": [call("bash", command=command)]}, {"text": "Done."})
        )
        async with asyncio.timeout(30):
            while not double.made or not (double.machines[double.made[0]].home / "workspace/ran").exists():
                await asyncio.sleep(0.05)
    machine = double.machines[double.made[0]]
    assert machine.state == "running", "one with a running turn is left as it is"
    (machine.home / "workspace/go").touch()
    async with stack.worker():
        assert (await stack.ended(turn.turn.turn_id)).state is TurnState.COMPLETED
    entry = await stack.history.entry(turn.turn.turn_id)
    assert entry.tools[0].preview.count("begun") == 1
    assert len(double.made) == 1
