"""What survives when the machine under a sandbox goes down, and what is reported lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from milepost.domain.errors import SandboxLost, SandboxUnavailable
from milepost.ports.sandbox import Exec, ReadFile
from tests.sandbox.boxes import new_id
from tests.sandbox.conformance.backends import Backend, Capability

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs(Capability.RESTART, Capability.SHELL)]


async def test_files_survive_and_what_ran_is_reported_lost(backend: Backend, tmp_path: Path) -> None:
    box = await backend.open(tmp_path, "restarted")
    ended, running, meant = new_id(), new_id(), new_id()
    await box.sandbox.perform(ended, Exec("echo kept > file"))
    task = await box.start(running, "echo x; sleep 100; echo late > late")
    await backend.restart(box)
    with pytest.raises(SandboxLost):
        await task
    again = await backend.provider.open(replace(box.spec, fresh=False))
    assert again.boot != box.sandbox.boot
    for effect in (ended, running):
        with pytest.raises(SandboxLost):
            await again.attach(effect)
    with pytest.raises(SandboxLost):
        await again.attach(meant, operation=Exec("echo again > again"), boot=box.sandbox.boot)
    assert (await again.perform(new_id(), ReadFile("file"))).stdout == b"kept\n"
    assert (await again.perform(new_id(), Exec("ls"))).stdout == b"file\n"
    await backend.provider.remove("restarted")


async def test_a_sandbox_that_was_removed_under_a_command(backend: Backend, tmp_path: Path) -> None:
    box = await backend.open(tmp_path, "removed")
    effect = new_id()
    task = await box.start(effect, "echo x; sleep 100")
    await backend.provider.remove("removed")
    with pytest.raises(SandboxLost):
        await task
    with pytest.raises(SandboxLost):
        await box.sandbox.attach(effect)
    with pytest.raises(SandboxUnavailable):
        await box.run(Exec("true"))
    await box.sandbox.kill(effect)
