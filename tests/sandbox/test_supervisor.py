"""The supervisor itself: whom it answers, and that nothing is taken from another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from milepost.domain.errors import SandboxLost, SandboxUnavailable
from milepost.ports.sandbox import Exec, Sandbox, Spawn, TerminalSize
from milepost.sandboxes.client import SupervisorClient
from milepost.sandboxes.podman.spec import ADDRESS
from tests.sandbox.boxes import LocalSupervisor, new_id, require_namespaces
from tests.support.podman import OpenSandbox

COMMAND = Exec("echo ran >> journal; echo out")
SPEAK = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect(chr(0) + sys.argv[1]);"
    "sys.stdout.write('answer' if s.recv(10) else 'refused')"
)


def ran(workspace: Path) -> int:
    journal = workspace / "journal"
    return len(journal.read_text().split()) if journal.exists() else 0


@pytest.fixture
def supervisor() -> Iterator[LocalSupervisor]:
    require_namespaces()
    made = LocalSupervisor()
    yield made
    made.close()


@pytest.mark.slow
async def test_it_stays_for_what_runs_when_nobody_is_there_and_then_ends() -> None:
    require_namespaces()
    made = LocalSupervisor(alone_seconds=0.1)
    try:
        client = made.client()
        await client.spawn("shell", Spawn(None, terminal=TerminalSize()))
        await client.close()
        # Long after it would have ended without it.
        await asyncio.sleep(1)
        assert made.process.poll() is None
        again = made.client()
        assert [found.running for found in await again.processes()] == [True]
        await again.end("shell")
        await again.close()
        async with asyncio.timeout(20):
            while made.process.poll() is None:
                await asyncio.sleep(0.02)
    finally:
        made.close()


async def speaks(sandbox: Sandbox, address: str) -> bytes:
    return (await sandbox.perform(new_id(), Exec(f'python3 -c "{SPEAK}" {address}'))).stdout


async def test_a_command_cannot_speak_to_the_supervisor(supervisor: LocalSupervisor) -> None:
    client = supervisor.client()
    assert await speaks(client, supervisor.address) == b"refused"
    await client.close()


@pytest.mark.podman
async def test_a_command_of_a_container_cannot_speak_to_it(sandbox: OpenSandbox, tmp_path: Path) -> None:
    assert await speaks(await sandbox(tmp_path), ADDRESS) == b"refused"


@pytest_asyncio.fixture
async def restarted() -> AsyncIterator[tuple[SupervisorClient, str, Path]]:
    """A client whose supervisor has just been replaced, the boot of the old one, and the new one's workspace."""
    require_namespaces()
    old, new = LocalSupervisor(), LocalSupervisor()
    current = [old]
    client = SupervisorClient(lambda: current[0].connect(), reconnect_seconds=20)
    try:
        await client.perform(new_id(), Exec("true"))
        boot = client.boot
        current[0] = new
        old.process.kill()
        old.process.wait()
        yield client, boot, new.workspace
    finally:
        await client.close()
        old.close()
        new.close()


async def test_what_was_meant_for_a_supervisor_that_is_gone_does_not_start(
    restarted: tuple[SupervisorClient, str, Path],
) -> None:
    client, boot, workspace = restarted
    with pytest.raises(SandboxLost):
        await client.attach(new_id(), operation=COMMAND, boot=boot)
    with pytest.raises(SandboxUnavailable, match="nothing was done"):
        await client.perform(new_id(), COMMAND, boot=boot)
    with pytest.raises(SandboxUnavailable, match="nothing was done"):
        await client.perform(new_id(), COMMAND)
    assert (ran(workspace), client.boot, client.connected) == (0, boot, False)
