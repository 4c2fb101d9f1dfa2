"""Sandboxes of E2B through its own SDK: made whole or not at all, paused, found again, never replaced."""

from __future__ import annotations

import asyncio
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.domain.errors import (
    MilepostError,
    SandboxLost,
    SandboxMissing,
    SandboxUnavailable,
    SandboxUnsupported,
)
from milepost.ports.sandbox import Exec, Sandbox, SandboxSpec, Spawn, TerminalSize, WriteFile
from milepost.sandboxes import client
from milepost.sandboxes.e2b.upload import pack
from tests.sandbox.boxes import new_id
from tests.sandbox.e2b.conftest import Make
from tests.support.e2b import Double


def spec(folder: Path, **choices: object) -> SandboxSpec:
    return replace(SandboxSpec("session", "instance", str(folder)), **choices)  # type: ignore[arg-type]


async def sh(sandbox: Sandbox, command: str) -> bytes:
    return (await sandbox.perform(new_id(), Exec(command, timeout=60))).stdout


async def test_a_new_one_has_the_folders_files_and_a_paused_one_goes_on(
    make: Make, double: Double, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text("echo ran\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("run.sh")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    first = make()
    sandbox = await first.open(spec(tmp_path))
    placement = sandbox.placement
    assert placement is not None
    assert (placement.backend, placement.sandbox_id, placement.domain) == ("e2b", double.made[0], "e2b.app")
    assert await sh(sandbox, "./link; ls; id -u; pwd") == f"ran\ndeep\nlink\nrun.sh\n1000\n{placement.root}\n".encode()
    await sandbox.spawn("shell", Spawn(None, terminal=TerminalSize()))
    effect = new_id()
    await sandbox.perform(effect, Exec("echo once >> count; cat count"))

    await first.remove("session")
    assert double.machines[placement.sandbox_id].state == "paused"
    assert await first.sessions() == frozenset()
    again = await make().open(spec(tmp_path, placement=placement, fresh=False))
    assert again.boot == sandbox.boot, "its memory was kept"
    assert (await again.attach(effect)).stdout == b"once\n"
    assert [found.running for found in await again.processes()] == [True]
    assert len(double.made) == 1
    assert not (tmp_path / "count").exists(), "the folder of this host stays as it is"
    await make().destroy("session")
    assert not double.machines
    with pytest.raises(SandboxMissing, match="env rebuild session"):
        await make().open(spec(tmp_path, placement=placement, fresh=False))
    assert len(double.made) == 1, "no other one takes its place"


async def test_what_was_prepared_and_is_gone_is_not_made_anew(make: Make, double: Double, tmp_path: Path) -> None:
    with pytest.raises(SandboxMissing):
        await make().open(spec(tmp_path, fresh=False))
    sandbox = await make().open(spec(tmp_path))
    running = asyncio.create_task(sandbox.perform(new_id(), Exec("sleep 60")))
    await asyncio.sleep(0.3)
    double.expire(double.made[0])
    with pytest.raises(SandboxLost):
        await running
    with pytest.raises(SandboxUnavailable):
        await sandbox.perform(new_id(), Exec("true"))


async def test_an_attempt_that_was_killed_is_finished_by_the_next(make: Make, double: Double, tmp_path: Path) -> None:
    """Of several sandboxes of one generation one is left, and it gets the files."""
    (tmp_path / "file").write_text("x")
    killed = make()
    for _ in range(2):
        await killed._service.create(killed._metadata(spec(tmp_path)), f"key-{len(double.made)}", internet=False)
    assert len(double.machines) == 2
    sandbox = await make().open(spec(tmp_path))
    assert await sh(sandbox, "ls") == b"file\n"
    assert len(double.machines) == 1


async def test_pings_do_not_get_between_the_pieces_of_a_large_write(
    make: Make, double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PING_SECONDS", 0.01)
    sandbox = await make().open(spec(tmp_path))
    data = os.urandom(6 * 1024 * 1024)
    await sandbox.perform(new_id(), WriteFile("large", data))
    assert (double.machines[double.made[0]].home / "workspace/large").read_bytes() == data


async def test_slow_starts_and_a_busy_service_are_waited_for(make: Make, double: Double, tmp_path: Path) -> None:
    double.faults.unanswered = 3
    double.faults.busy = 2
    sandbox = await make().open(spec(tmp_path))
    assert await sh(sandbox, "echo there") == b"there\n"
    assert len(double.made) == 1


async def test_lost_streams_lose_and_double_nothing(make: Make, double: Double, tmp_path: Path) -> None:
    sandbox = await make().open(spec(tmp_path))
    assert sandbox.placement is not None
    pieces: list[bytes] = []
    command = "for i in $(seq 1 40); do echo line $i; echo x >> ran; sleep 0.02; done; wc -l < ran"
    task = asyncio.create_task(sandbox.perform(new_id(), Exec(command), lambda _, data: pieces.append(data)))
    for _ in range(4):
        await asyncio.sleep(0.15)
        double.cut(sandbox.placement.sandbox_id)
    double.faults.cut_after, double.faults.cuts = 2, 3
    double.cut(sandbox.placement.sandbox_id)
    outcome = await task
    expected = b"".join(b"line %d\n" % number for number in range(1, 41)) + b"40\n"
    assert outcome.stdout == expected
    assert b"".join(pieces) == expected, "what was shown is not shown twice"


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"template": "nothing"}, "sandbox.e2b.template, which is 'nothing'"),
        ({"template": "bare"}, "has no git, find; nothing is installed"),
        ({"key": "e2b_wrong"}, "does not accept the API key"),
        ({"upload_bytes": 1024}, "upload_bytes"),
    ],
)
async def test_what_cannot_be_used_is_told_and_leaves_nothing(
    make: Make, double: Double, tmp_path: Path, choices: dict[str, object], words: str
) -> None:
    (tmp_path / "noise").write_bytes(os.urandom(100_000))
    with pytest.raises(MilepostError) as refused:
        await make(**choices).open(spec(tmp_path))
    assert words in f"{refused.value.message} {refused.value.fix}"
    assert "e2b_" not in f"{refused.value.message} {refused.value.fix}"
    assert not double.machines


async def test_an_image_is_refused_and_not_replaced(make: Make, double: Double, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnsupported, match="template"):
        await make().open(spec(tmp_path, image="python:3.12-slim"))
    assert not double.made


async def test_its_network_and_labels_are_as_chosen(make: Make, double: Double, tmp_path: Path) -> None:
    provider = make()
    for network, internet in (("none", False), ("bridge", True)):
        await provider.open(spec(tmp_path, session_id=network, network=network))
        body = double.machines[double.made[-1]].body
        assert body["allow_internet_access"] is internet
        assert body["network"]["allowPublicTraffic"] is False, "its ports are nobody else's"
        assert (body["autoPause"], body.get("autoResume", {}).get("enabled", False)) == (True, False)
        assert body["metadata"] == {
            "milepost-instance": "instance",
            "milepost-session": network,
            "milepost-generation": "1",
            "milepost-lease": "tests",
        }
    held = {(each.session_id, each.generation, each.running, each.kind) for each in await provider.holdings()}
    assert held == {("none", 1, True, "sandbox"), ("bridge", 1, True, "sandbox")}
    assert await make("another").holdings() == (), "another instance's are not ours"
    for each in await provider.holdings():
        await provider.discard(each)
    assert not double.machines


@pytest.mark.slow
async def test_a_sandbox_in_use_is_kept_and_an_idle_one_is_paused(make: Make, double: Double, tmp_path: Path) -> None:
    sandbox = await make(timeout_seconds=2).open(spec(tmp_path))
    assert sandbox.placement is not None
    assert (await sandbox.perform(new_id(), Exec("sleep 4; echo whole"))).stdout == b"whole\n"
    machine = double.machines[sandbox.placement.sandbox_id]
    async with asyncio.timeout(20):
        while machine.state != "paused":
            await asyncio.sleep(0.1)
    again = await make().open(spec(tmp_path, placement=sandbox.placement))
    assert again.boot == sandbox.boot


def test_the_packed_folder_follows_no_link_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not yours")
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "out").symlink_to(secret)
    (folder / "up").symlink_to("..")
    (folder / "strange\nname").write_text("1")
    (folder / "suid").write_text("2")
    (folder / "suid").chmod(0o4755)
    os.mkfifo(folder / "pipe")
    with (tmp_path / "packed").open("wb") as file:
        assert pack(folder, file, 1 << 20) == 1
    with tarfile.open(tmp_path / "packed") as archive:
        members = {member.name: member for member in archive.getmembers()}
    assert sorted(members) == ["out", "strange\nname", "sub", "suid", "up"]
    assert members["out"].issym() and members["up"].issym()
    assert members["suid"].mode == 0o755
    assert {(member.uid, member.uname) for member in members.values()} == {(0, "")}
