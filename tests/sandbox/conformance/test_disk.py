"""A Workspace stays within its bound, the host keeps free space, and whoever meets a bound is told and can tidy up."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from milepost.ports.sandbox import EditFile, Exec, ProcessEnd, SandboxLimits, Spawn, WriteFile
from tests.sandbox.boxes import new_id
from tests.sandbox.conformance.backends import Backend, Capability

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.needs(Capability.DISK, Capability.SHELL)]

MIB = 1024 * 1024
LIMIT = 48 * MIB
FILL = "n=0; while :; do head -c 2097152 /dev/zero > fill-$n; n=$((n+1)); sleep 0.01; done"


def used(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


async def test_a_workspace_stays_within_its_bound(backend: Backend, tmp_path: Path) -> None:
    box = await backend.open(tmp_path, "disk", limits=SandboxLimits(workspace_bytes=LIMIT))
    one = await box.sh("head -c 200M /dev/zero > big; echo code $?; stat -c %s big; rm big")
    assert one.stdout == b"code 153\n%d\n" % LIMIT, "the kernel bounds a single file exactly"
    assert (await box.run(WriteFile("fine", bytes(MIB)))).error_code is None

    many = await box.run(Exec(FILL, timeout=100))
    assert (many.exit_code, many.timed_out, many.killed) == (153, False, False)
    assert many.detail["disk"] in many.stderr.decode()
    assert "may have 48 MiB" in str(many.detail["disk"])
    assert LIMIT < used(box.workspace) < 20 * LIMIT

    for operation in (WriteFile("more", bytes(MIB)), EditFile("fine", "a", "b")):
        refused = await box.run(operation)
        assert refused.error_code == "no_space", refused
        assert "48 MiB" in str(refused.error)
    process_id = new_id()
    await box.sandbox.spawn(process_id, Spawn(FILL.replace("fill-", "again-")))
    async with asyncio.timeout(90):
        while (found := await box.sandbox.read(process_id, -400, wait=20)).running:
            pass
    assert found.ended_by is ProcessEnd.DISK
    assert b"may have 48 MiB" in (await box.sandbox.read(process_id, -400)).data

    tidied = await box.sh("echo small > small && rm fill-* again-* && echo tidied")
    assert tidied.stdout == b"tidied\n", "what is over its bound can be tidied up from inside"
    async with asyncio.timeout(60):
        while (await box.run(WriteFile("more", bytes(MIB)))).error_code is not None:
            await asyncio.sleep(0.2)
    await backend.provider.remove("disk")


async def test_the_host_keeps_free_space(backend: Backend, tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    box = await backend.open(tmp_path, "free", limits=SandboxLimits(free_bytes=free - 32 * MIB))
    filled = await box.run(Exec(FILL, timeout=100))
    assert filled.exit_code == 153
    assert "must stay free" in str(filled.detail["disk"])
    assert (await box.run(WriteFile("more", bytes(MIB)))).error_code == "no_space"
    assert (await box.sh("rm fill-* && echo tidied")).stdout == b"tidied\n"
    await backend.provider.remove("free")
