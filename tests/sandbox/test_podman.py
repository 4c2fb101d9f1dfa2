"""The Podman back end: isolation, life cycle, recovery. On the real Podman of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.domain.errors import InvalidInput, SandboxLost, SandboxUnavailable
from milepost.ports.sandbox import Exec, Sandbox, SandboxLimits, SandboxSpec, WriteFile
from milepost.sandboxes.podman.api import PodmanApi
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.sandboxes.podman.sandbox import PodmanSandbox
from milepost.sandboxes.podman.service import PodmanService
from milepost.sandboxes.supervisor import wire
from tests.sandbox.boxes import new_id
from tests.support.podman import OpenSandbox, new_instance, remove_owned

pytestmark = pytest.mark.podman

MIB = 1024 * 1024


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


async def sh(sandbox: Sandbox, command: str, timeout: float = 60) -> str:  # noqa: ASYNC109
    outcome = await sandbox.perform(new_id(), Exec(command, timeout=timeout))
    return outcome.stdout.decode() + outcome.stderr.decode()


def spec_of(provider: PodmanProvider, workspace: Path, session: str = "s") -> SandboxSpec:
    return SandboxSpec(session, provider.instance_id, str(workspace))


async def api_of(provider: PodmanProvider) -> PodmanApi:
    return await provider._service.api()


# --- isolation --------------------------------------------------------------------------------------------------


async def test_the_container_is_closed(sandbox: OpenSandbox, workspace: Path) -> None:
    """One container, many looks: privileges, file systems, system calls, network, processes, limits."""
    box = await sandbox(workspace)
    status = await sh(box, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
    values = dict(line.split(":\t") for line in status.splitlines())
    assert {values[name] for name in values if name.startswith("Cap")} == {"0" * 16}
    assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
    if os.getuid() == 0:
        outer = (await sh(box, "awk '{print $2}' /proc/self/uid_map")).split()
        assert "0" not in outer, "root of the host is mapped in"
    assert (await sh(box, "id -u; id -g")).split() == ["1000", "1000"]

    for path in ("/x", "/usr/x", "/etc/x", "/proc/sys/kernel/x"):
        assert "denied" in (text := await sh(box, f"touch {path}")) or "Read-only" in text or "No such" in text, text
    for path in ("/workspace", "/tmp", "/var/tmp", "/home/agent"):
        assert await sh(box, f"touch {path}/x && echo fine") == "fine\n"

    assert "Operation not permitted" in await sh(box, "unshare --user true")
    assert "Operation not permitted" in await sh(box, "touch /tmp/m; chmod u+s /tmp/m")
    family = "import socket\ntry: socket.socket(socket.AF_VSOCK)\nexcept OSError as e: print(e.errno)"
    assert await sh(box, f"python3 -c '{family}'") == "97\n"

    # Judged from what is there, never by dialing: no interface but lo, no route, no name server.
    assert (await sh(box, "cut -d: -f1 -s /proc/net/dev | grep -v '|' | tr -d ' '")).split() == ["lo"]
    assert len((await sh(box, "cat /proc/net/route")).splitlines()) == 1
    assert (await sh(box, "cat /etc/resolv.conf")).strip() == ""
    assert "podman.sock" not in await sh(box, "cat /proc/self/mountinfo; find / -xdev -name '*.sock' 2>/dev/null")
    assert (await sh(box, "cat /proc/1/comm")).strip() == "milepost-superv"
    assert (await sh(box, "ulimit -n; ulimit -u; ulimit -c")).split() == [str(min(16384, _nofile())), "512", "0"]


def _nofile() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


async def test_a_workspace_of_a_person_below_a_closed_folder(sandbox: OpenSandbox, tmp_path: Path) -> None:
    """Owner only, all the way: writable inside, and what is made inside belongs to the owner outside."""
    closed = tmp_path / "closed"
    workspace = closed / "w"
    workspace.mkdir(parents=True)
    (workspace / "private").write_text("content")
    (workspace / "private").chmod(0o600)
    workspace.chmod(0o700)
    closed.chmod(0o700)
    box = await sandbox(workspace)
    assert await sh(box, "cat private; mkdir d; echo x > d/made; stat -c %u:%a private d/made") == (
        "content1000:600\n1000:644\n"
    )
    await box.perform(new_id(), WriteFile("d/written", b"x"))
    for name in ("d", "d/made", "d/written"):
        found = (workspace / name).stat()
        assert (found.st_uid, found.st_gid) == (workspace.stat().st_uid, workspace.stat().st_gid)


async def test_a_workspace_that_is_not_writable_has_a_fix_that_works(podman: PodmanProvider, workspace: Path) -> None:
    os.chmod(workspace, 0o555)  # noqa: PTH101
    with pytest.raises(SandboxUnavailable, match=r"workspace .* is not writable for its owner .*0555") as caught:
        await podman.open(spec_of(podman, workspace))
    assert await podman.owned() == ()
    command = re.match(r"Run: (chmod .*?)  Or open", str(caught.value.fix))
    assert command
    assert await (await asyncio.create_subprocess_shell(command[1])).wait() == 0
    assert await sh(await podman.open(spec_of(podman, workspace)), "touch f && echo fine") == "fine\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can have a workspace of another user")
async def test_root_on_the_workspace_of_somebody_else(sandbox: OpenSandbox, workspace: Path) -> None:
    (workspace / "f").write_text("x")
    for path in (workspace, workspace / "f"):
        os.chown(path, 12345, 23456)
    box = await sandbox(workspace)
    assert await sh(box, "echo y >> f; echo z > g; cat f g; stat -c %u f g") == "xy\nz\n1000\n1000\n"
    assert ((workspace / "g").stat().st_uid, (workspace / "g").stat().st_gid) == (12345, 23456)


async def test_a_fork_bomb_stays_in_its_limits_and_can_be_stopped(sandbox: OpenSandbox, workspace: Path) -> None:
    box = await sandbox(workspace, limits=SandboxLimits(pids=64))
    effect, started = new_id(), asyncio.Event()
    bomb = "echo x; b() { b | b & b; }; b"
    task = asyncio.create_task(box.perform(effect, Exec(bomb), lambda *_: started.set()))
    async with asyncio.timeout(30):
        await started.wait()
    await asyncio.sleep(0.5)
    await box.kill(effect)
    assert (await task).killed
    assert await sh(box, "echo alive") == "alive\n"


async def test_memory_has_a_limit_where_the_host_can_enforce_it(
    podman: PodmanProvider, sandbox: OpenSandbox, workspace: Path
) -> None:
    if "memory" in (await podman.check()).unenforced:
        pytest.skip("this host cannot limit the memory of a rootless container, and check() says so")
    box = await sandbox(workspace, limits=SandboxLimits(memory_bytes=128 * MIB))
    outcome = await box.perform(new_id(), Exec("python3 -c 'x = bytearray(400 * 2**20); print(len(x))'"))
    assert (outcome.exit_code, outcome.stdout) == (137, b"")
    assert await sh(box, "echo alive") == "alive\n"


async def test_no_secret_of_this_process_reaches_container_or_service(
    sandbox: OpenSandbox, podman: PodmanProvider, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_SECRET", "canary-value")
    monkeypatch.setenv("HTTP_PROXY", "http://user:canary-value@127.0.0.1:9")
    box = await sandbox(workspace, environment={"TOKEN": "canary-for-commands-only"})
    assert "canary-value" not in await sh(box, "env; cat /proc/*/environ 2>/dev/null")
    assert isinstance(box, PodmanSandbox)
    found = await (await api_of(podman)).container(box.container_id)
    assert "canary" not in str(found)


ATTACK = r"""
import json, os, socket, struct, threading, time

def frame(head, body=b""):
    data = json.dumps(head).encode()
    return struct.pack(">II", len(data), len(body)) + data + body

def pose(link):
    link.sendall(frame({"t": "hello", "protocol": PROTOCOL, "boot": "f" * 32, "facts": {}}))
    buffer = b""
    while piece := link.recv(65536):
        buffer += piece
        while len(buffer) >= 8:
            size, rest = struct.unpack(">II", buffer[:8])
            if len(buffer) < 8 + size + rest:
                break
            head, buffer = json.loads(buffer[8 : 8 + size]), buffer[8 + size + rest :]
            if head["t"] == "run":
                link.sendall(frame({"t": "ack", "rid": head["rid"], "attached": False}))
                link.sendall(frame({"t": "out", "rid": head["rid"], "s": "stdout"}, b"FORGED"))
                link.sendall(frame({"t": "done", "rid": head["rid"], "exit_code": 0}))

def accept(listener):
    while True:
        threading.Thread(target=pose, args=(listener.accept()[0],), daemon=True).start()

def tell(word):
    with open("/workspace/said", "a") as file:
        file.write(word + "\n")

for name in {line.split()[-1] for line in open("/proc/net/unix")}:
    if "milepost" in name:
        tell("found")
        try:
            if name[0] == "/":
                os.unlink(name)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(name.replace("@", chr(0), 1))
            listener.listen(8)
            threading.Thread(target=accept, args=(listener,), daemon=True).start()
            tell("posing")
        except OSError:
            tell("in use")
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        bridge = b"MILEPOST_BRIDGE" in open(f"/proc/{pid}/cmdline", "rb").read() and int(pid) != os.getpid()
    except OSError:
        continue
    if bridge:
        for what, deed in (
            ("traced", lambda: os.listdir(f"/proc/{pid}/fd")),
            ("written", lambda: open(f"/proc/{pid}/fd/1", "wb").close()),
            ("killed", lambda: os.kill(int(pid), 9)),
        ):
            try:
                deed()
                tell(what)
            except OSError:
                tell("not " + what)
tell("done")
time.sleep(60)
"""


async def test_no_command_can_pose_as_the_supervisor(
    podman: PodmanProvider, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither take its address, nor get at the process that speaks for the worker; later calls are answered truly."""
    monkeypatch.setattr("milepost.sandboxes.client.KILL_SECONDS", 60)
    (workspace / "attack.py").write_text(ATTACK.replace("PROTOCOL", str(wire.PROTOCOL)))
    box = await podman.open(spec_of(podman, workspace))
    effect = new_id()
    task = asyncio.create_task(box.perform(effect, Exec("python3 attack.py")))
    said = workspace / "said"
    async with asyncio.timeout(60):
        while not said.exists() or "done" not in said.read_text():
            await asyncio.sleep(0.05)
    other = PodmanProvider(podman._data_root, podman.instance_id)
    try:
        for provider in (podman, other):
            opened = await provider.open(spec_of(podman, workspace))
            assert await sh(opened, "echo true | tee -a proof") == "true\n"
            assert opened.boot == box.boot
    finally:
        await other.close()
    assert (workspace / "proof").read_text() == "true\n" * 2
    assert said.read_text().split("\n")[:-1] == ["found", "in use", "not traced", "not written", "not killed", "done"]
    await box.kill(effect)
    assert (await task).killed


async def test_a_container_whose_supervisor_is_another_one_is_replaced(podman: PodmanProvider, workspace: Path) -> None:
    """It was not started again, so what answers is no supervisor: the next open makes a new container."""
    spec = spec_of(podman, workspace)
    box = await podman.open(spec)
    assert isinstance(box, PodmanSandbox)
    await box.close()
    box._client._boot = "of another one"
    with pytest.raises(SandboxLost):
        await box.attach(new_id())
    again = await podman.open(spec)
    assert isinstance(again, PodmanSandbox)
    assert again.container_id != box.container_id
    assert await sh(again, "echo fine") == "fine\n"
    assert [found.container_id for found in await podman.owned()] == [again.container_id]


async def test_a_workspace_that_became_a_link_is_not_mounted(
    podman: PodmanProvider, workspace: Path, tmp_path: Path
) -> None:
    """What an agent on an outer workspace can do to an inner one, with and without a container that runs."""
    inner, secret = workspace / "sub", tmp_path / "secret"
    inner.mkdir()
    secret.mkdir()
    outer = await podman.open(spec_of(podman, workspace, "outer"))
    await sh(await podman.open(spec_of(podman, inner, "inner")), "echo x > own")
    assert await sh(outer, f"rm -r sub && ln -s {secret} sub && echo swapped") == "swapped\n"
    for _ in range(2):
        with pytest.raises(InvalidInput, match="symbolic link") as caught:
            await podman.open(spec_of(podman, inner, "inner"))
        assert str(inner) in str(caught.value.fix)
        await podman.remove("inner")
    assert [found.session_id for found in await podman.owned()] == ["outer"]


@contextlib.contextmanager
def swapped(workspace: Path, link_to: Path) -> Iterator[None]:
    workspace.rmdir()
    workspace.symlink_to(link_to)
    try:
        yield
    finally:
        workspace.unlink()
        workspace.mkdir()


def open_folders(parent: Path) -> list[Path]:
    parent.chmod(0o755)
    found = [parent / "w", parent / "secret"]
    for path in found:
        path.mkdir()
    return found


def made_anew(workspace: Path) -> Path:
    """Where the old one is now."""
    moved = workspace.rename(workspace.with_name("moved"))
    workspace.mkdir()
    return moved


async def test_a_workspace_that_is_exchanged_under_the_making_of_its_container(
    podman: PodmanProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap comes after the check of the path: the mount tells."""
    # Where also the container's users may go, so that the mount of the wrong folder works.
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        workspace, secret = open_folders(Path(name))
        start, starts = PodmanApi.start, list[str]()

        async def swapping(self: PodmanApi, container: str) -> None:
            with swapped(workspace, secret):
                await start(self, container)
                starts.append(container)

        monkeypatch.setattr(PodmanApi, "start", swapping)
        with pytest.raises(SandboxUnavailable, match=r"exchanged|readlink") as caught:
            await podman.open(spec_of(podman, workspace))
        # From crun 1.21 on the runtime itself refuses a link where the folder was.
        assert len(starts) == 2 or "readlink" in str(caught.value)
        assert await podman.owned() == ()


async def test_a_workspace_that_was_made_anew_gets_a_new_container(podman: PodmanProvider, workspace: Path) -> None:
    spec = spec_of(podman, workspace)
    await sh(await podman.open(spec), "echo old > f")
    moved = made_anew(workspace)
    assert await sh(await podman.open(spec), "ls; echo new > g") == ""
    assert (workspace / "g").read_text() == "new\n"
    assert (moved / "f").read_text() == "old\n"


# --- life cycle -------------------------------------------------------------------------------------------------


async def test_open_is_idempotent_also_between_processes(podman: PodmanProvider, workspace: Path) -> None:
    spec = spec_of(podman, workspace)
    other = PodmanProvider(podman._data_root, podman.instance_id)
    try:
        opened = await asyncio.gather(*(provider.open(spec) for provider in (podman, other, podman)))
        assert len({box.container_id for box in opened if isinstance(box, PodmanSandbox)}) == 1
        assert len(await podman.owned()) == 1
        assert await podman.open(spec) is opened[0]
    finally:
        await other.close()


async def test_the_host_is_asked_once_for_all_sessions(
    podman: PodmanProvider, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, asked = PodmanApi.info, list[str]()

    async def counted(self: PodmanApi) -> dict[str, Any]:
        asked.append(self.socket)
        return await info(self)

    monkeypatch.setattr(PodmanApi, "info", counted)
    for session in ("one", "two", "one"):
        await (await podman.open(spec_of(podman, workspace, session))).perform(new_id(), Exec("true"))
        await podman.remove(session)
    assert len(asked) == 1
    assert (await podman.check()).ok
    assert len(asked) == 2, "the check looks itself"


async def test_other_choices_replace_the_container(podman: PodmanProvider, workspace: Path) -> None:
    spec = spec_of(podman, workspace)
    await podman.open(spec)
    before = (await podman.owned())[0]
    await podman.open(replace(spec, limits=SandboxLimits(pids=99), generation=2))
    after = await podman.owned()
    assert [found.generation for found in (before, *after)] == [1, 2]
    assert after[0].container_id != before.container_id


async def test_another_environment_needs_no_new_container(podman: PodmanProvider, workspace: Path) -> None:
    spec = spec_of(podman, workspace)
    first = await podman.open(spec)
    second = await podman.open(replace(spec, environment={"A": "b"}))
    assert await sh(second, "echo $A") == "b\n"
    assert isinstance(first, PodmanSandbox)
    assert isinstance(second, PodmanSandbox)
    assert first.container_id == second.container_id


async def test_a_container_that_ended_is_replaced_and_the_files_stay(podman: PodmanProvider, workspace: Path) -> None:
    spec = spec_of(podman, workspace)
    box = await podman.open(spec)
    assert isinstance(box, PodmanSandbox)
    await sh(box, "echo kept > f")
    await (await api_of(podman)).kill(box.container_id)
    async with asyncio.timeout(30):
        while box.connected or await podman.owned():
            await asyncio.sleep(0.02)
    again = await podman.open(spec)
    assert isinstance(again, PodmanSandbox)
    assert again.container_id != box.container_id
    assert await sh(again, "cat f") == "kept\n"


async def test_remove_is_idempotent_and_touches_no_other(podman: PodmanProvider, workspace: Path) -> None:
    stranger = PodmanProvider(podman._data_root, new_instance())
    try:
        await stranger.open(spec_of(stranger, workspace))
        await podman.open(spec_of(podman, workspace))
        for _ in range(2):
            await podman.remove("s")
        assert await podman.owned() == ()
        assert [found.session_id for found in await stranger.owned()] == ["s"]
    finally:
        await remove_owned(stranger)
        await stranger.close()


async def test_containers_carry_labels_for_the_reaper(podman_root: Path, workspace: Path) -> None:
    provider = PodmanProvider(podman_root, new_instance(), lease="worker-7")
    try:
        await provider.open(spec_of(provider, workspace, "session-1"))
        (found,) = await provider.owned()
        assert (found.session_id, found.generation, found.lease, found.running) == ("session-1", 1, "worker-7", True)
    finally:
        await remove_owned(provider)
        await provider.close()


async def test_a_missing_image_names_the_command_that_builds_it(podman_root: Path, workspace: Path) -> None:
    provider = PodmanProvider(podman_root, new_instance(), image="localhost/no-such-image:1")
    try:
        with pytest.raises(SandboxUnavailable) as caught:
            await provider.open(spec_of(provider, workspace))
        assert caught.value.fix == "Build it: milepost sandbox build-image"
        health = await provider.check()
        assert (health.ok, health.fix) == (False, caught.value.fix)
    finally:
        await provider.close()


async def test_an_image_that_is_up_to_date_is_not_built_again(podman: PodmanProvider) -> None:
    lines: list[str] = []
    await podman.build_image()
    info = await podman.build_image(lines.append)
    assert not info.built
    assert "up to date" in lines[-1]


@pytest.mark.parametrize("choice", [{"network": "host"}, {"network": ""}, {"workspace_path": "/"}])
async def test_bad_choices_are_refused_by_name(podman: PodmanProvider, workspace: Path, choice: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        await podman.open(replace(spec_of(podman, workspace), **choice))
    assert caught.value.field == next(iter(choice))
    with pytest.raises(InvalidInput, match="does not exist"):
        await podman.open(spec_of(podman, workspace / "missing"))


# --- recovery ---------------------------------------------------------------------------------------------------


async def test_a_killed_worker_loses_nothing_and_repeats_nothing(podman: PodmanProvider, workspace: Path) -> None:
    """The process that dispatched dies by SIGKILL; another one attaches; the journal shows one run."""
    effect = new_id()
    command = "echo ran >> journal; echo begin; until [ -e go ]; do sleep 0.02; done; echo end; exit 5"
    arguments = [str(podman._data_root), podman.instance_id, str(workspace), effect, command]
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.sandbox.worker_process", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    async with asyncio.timeout(60):
        assert await worker.stdout.readline() == b"running\n"
    worker.kill()
    await worker.wait()
    (workspace / "go").touch()
    box = await podman.open(spec_of(podman, workspace, "killed"))
    outcome = await box.attach(effect)
    assert (outcome.exit_code, outcome.stdout, outcome.attached) == (5, b"begin\nend\n", True)
    assert (await box.perform(effect, Exec(command))).attached
    assert (workspace / "journal").read_text() == "ran\n"


async def test_a_sandbox_out_of_reach_is_killed_from_outside(
    podman: PodmanProvider, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.sandboxes.client.KILL_SECONDS", 0.5)
    box = await podman.open(spec_of(podman, workspace))
    assert isinstance(box, PodmanSandbox)
    effect, started = new_id(), asyncio.Event()
    task = asyncio.create_task(box.perform(effect, Exec("echo x; sleep 100"), lambda *_: started.set()))
    async with asyncio.timeout(30):
        await started.wait()

    async def never(*_: object) -> None:
        await asyncio.sleep(60)

    assert box._client._connection is not None
    monkeypatch.setattr(box._client._connection, "request", never)
    await box.kill(effect)
    with pytest.raises(SandboxLost):
        await task


@pytest.fixture
def own_root() -> Iterator[Path]:
    """A data root without a running service, so that the provider runs and restarts its own."""
    root = Path(tempfile.mkdtemp(prefix="mpo-"))
    yield root
    shutil.rmtree(root, ignore_errors=True)


async def test_a_service_killed_under_a_command_is_started_again(
    podman_root: Path, own_root: Path, workspace: Path
) -> None:
    provider = PodmanProvider(own_root, new_instance())
    try:
        box = await provider.open(spec_of(provider, workspace))
        process = provider._service._process
        if process is None:
            pytest.skip("a service of the user answers, which is not ours to kill")
        effect, started = new_id(), asyncio.Event()
        command = Exec("echo ran >> journal; echo begin; until [ -e go ]; do sleep 0.02; done; echo end")
        task = asyncio.create_task(box.perform(effect, command, lambda *_: started.set()))
        async with asyncio.timeout(30):
            await started.wait()
        process.kill()
        await process.wait()
        await asyncio.sleep(0.2)
        (workspace / "go").touch()
        outcome = await task
        assert (outcome.exit_code, outcome.stdout) == (0, b"begin\nend\n")
        assert (workspace / "journal").read_text() == "ran\n"
        assert provider._service._process is not process
    finally:
        await remove_owned(provider)
        await provider.close()


def services_at(root: Path) -> list[int]:
    """Processes that serve the socket of this data root."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"unix://{root}/run/podman.sock".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


async def test_a_service_ends_with_its_killed_owner_and_the_container_does_not(
    podman_root: Path, own_root: Path, workspace: Path
) -> None:
    provider, effect = PodmanProvider(own_root, new_instance()), new_id()
    command = "echo ran >> journal; echo begin; until [ -e go ]; do sleep 0.02; done; echo end"
    arguments = [str(own_root), provider.instance_id, str(workspace), effect, command]
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.sandbox.worker_process", *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert worker.stdout is not None
        async with asyncio.timeout(60):
            assert await worker.stdout.readline() == b"running\n"
        if not services_at(own_root):
            pytest.skip("a service of the user answers, which is not ours to kill")
        worker.kill()
        await worker.wait()
        async with asyncio.timeout(60):
            while services_at(own_root):
                await asyncio.sleep(0.05)
        box = await provider.open(spec_of(provider, workspace, "killed"))
        assert provider._service._process is not None
        (workspace / "go").touch()
        outcome = await box.attach(effect)
        assert (outcome.stdout, outcome.attached) == (b"begin\nend\n", True)
        assert (workspace / "journal").read_text() == "ran\n"
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
        await remove_owned(provider)
        await provider.close()


async def test_closing_stops_the_own_service_and_leaves_the_containers(
    podman_root: Path, own_root: Path, workspace: Path
) -> None:
    provider = PodmanProvider(own_root, new_instance())
    effect = new_id()
    try:
        box = await provider.open(spec_of(provider, workspace))
        started = asyncio.Event()
        task = asyncio.create_task(box.perform(effect, Exec("echo x; sleep 1; echo y"), lambda *_: started.set()))
        async with asyncio.timeout(30):
            await started.wait()
        task.cancel()
        process = provider._service._process
        await provider.close()
        assert process is None or process.returncode is not None
        outcome = await (await provider.open(spec_of(provider, workspace))).attach(effect)
        assert outcome.stdout == b"x\ny\n"
    finally:
        await remove_owned(provider)
        await provider.close()


async def test_the_service_of_another_process_is_used(podman_root: Path, own_root: Path) -> None:
    """No second service, no stale socket in the way."""
    services = [PodmanService(own_root, None, None, None) for _ in range(2)]
    try:
        for service in services:
            assert await (await service.api()).ping()
        assert services[1]._process is None
    finally:
        for service in services:
            await service.close()


async def test_a_stale_socket_is_no_obstacle(own_root: Path, podman_root: Path) -> None:
    import socket

    path = own_root / "run" / "podman.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    service = PodmanService(own_root, None, None, None)
    try:
        started = time.monotonic()
        assert await (await service.api()).ping()
        assert time.monotonic() - started < 60
    finally:
        await service.close()


# --- network ----------------------------------------------------------------------------------------------------


async def test_a_bridged_sandbox_has_no_way_to_this_host(
    podman: PodmanProvider, sandbox: OpenSandbox, workspace: Path
) -> None:
    """Judged from the interfaces and routes inside; nothing is dialed."""
    try:
        box = await sandbox(workspace, network="bridge")
    except SandboxUnavailable as error:
        if os.getuid() != 0 and not os.access("/dev/net/tun", os.W_OK):
            pytest.skip(f"this user may not make network devices: {error}")
        raise
    assert len((await sh(box, "cut -d: -f1 -s /proc/net/dev | grep -v '|'")).split()) == 2
    routes = [line.split() for line in (await sh(box, "cat /proc/net/route")).splitlines()[1:]]
    refused = {line[1] for line in routes if int(line[3], 16) & 0x200}
    assert "0000FEA9" in refused, "link-local addresses (metadata) are not refused"
    gateways = {line[2] for line in routes if line[2] != "00000000"}
    assert gateways, "there is no default route, so this tested nothing"
    assert gateways <= refused, "the host's own address is not refused"
