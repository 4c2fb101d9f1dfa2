"""A process that was killed leaves no container behind, and what others made is never touched."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.ports.sandbox import SandboxSpec
from milepost.sandboxes import bundle
from milepost.sandboxes.podman.api import PodmanApi
from milepost.sandboxes.podman.provider import PodmanProvider
from tests.support.podman import new_instance, remove_owned

WORKER = """
import asyncio, sys, uuid
from pathlib import Path
from milepost.ports.sandbox import Exec, SandboxSpec
from milepost.sandboxes import bundle, client
from milepost.sandboxes.podman.provider import PodmanProvider

# The same course in a tenth of the time.
brief = bundle._sources()
for long, short in (("IDLE_SECONDS = 30.0", "IDLE_SECONDS = 3.0"), ("ALONE_SECONDS = 15.0", "ALONE_SECONDS = 1.5")):
    brief = [(name, source.replace(long, short)) for name, source in brief]
bundle._sources = lambda: brief
client.PING_SECONDS = 1.0

async def main(root, instance, idle, busy):
    provider = PodmanProvider(Path(root), instance, lease="killed")
    await provider.open(SandboxSpec("idle", instance, idle))
    box = await provider.open(SandboxSpec("busy", instance, busy))
    tell = lambda *_: print("opened", flush=True)
    await box.perform("effect", Exec("echo begun; sleep 5; echo done at last"), tell)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.podman
@pytest.mark.slow
async def test_a_killed_worker_leaves_nothing_but_what_must_be_told(podman_root: Path, tmp_path: Path) -> None:
    """Its idle container is gone soon (45 s with the real times); that of a command keeps its result."""
    instance, foreign = new_instance(), PodmanProvider(podman_root, new_instance())
    provider = PodmanProvider(podman_root, instance)
    folders = [tmp_path / name for name in ("idle", "busy", "foreign")]
    for folder in folders:
        folder.mkdir()
    try:
        await foreign.open(SandboxSpec("theirs", foreign.instance_id, str(folders[2])))
        command = [sys.executable, "-c", WORKER, str(podman_root), instance, str(folders[0]), str(folders[1])]
        worker = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        assert await asyncio.to_thread(worker.stdout.readline) == "opened\n"
        os.kill(worker.pid, signal.SIGKILL)
        await asyncio.to_thread(worker.wait)
        worker.stdout.close()
        async with asyncio.timeout(60):
            while {found.session_id for found in await provider.owned()} != {"busy"}:
                await asyncio.sleep(1)
        box = await provider.open(SandboxSpec("busy", instance, str(folders[1])))
        outcome = await box.attach("effect")
        assert (outcome.exit_code, outcome.stdout) == (0, b"begun\ndone at last\n")
        assert await foreign.sessions() == {"theirs"}
    finally:
        for each in (provider, foreign):
            await remove_owned(each)
            await each.close()


@pytest.mark.podman
@pytest.mark.slow
async def test_a_supervisor_that_nobody_needs_ends_and_its_container_goes(
    podman: PodmanProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with short times, and a container that the service removes by itself."""
    times = {"IDLE_SECONDS = 30.0": "IDLE_SECONDS = 1.0", "ALONE_SECONDS = 15.0": "ALONE_SECONDS = 1.0"}
    short = bundle._sources()
    for long, brief in times.items():
        short = [(name, source.replace(long, brief)) for name, source in short]
    assert short != bundle._sources()
    monkeypatch.setattr(bundle, "_sources", lambda: short)
    monkeypatch.setattr("milepost.sandboxes.client.PING_SECONDS", 0.2)
    box = await podman.open(SandboxSpec("s", podman.instance_id, str(tmp_path)))
    await asyncio.sleep(4)
    assert await podman.sessions() == {"s"}, "a worker that lives keeps it"
    await box.close()  # type: ignore[attr-defined]
    api: PodmanApi = await podman._service.api()
    async with asyncio.timeout(30):
        while await api.containers({"org.milepost.instance": podman.instance_id}):
            await asyncio.sleep(0.2)
