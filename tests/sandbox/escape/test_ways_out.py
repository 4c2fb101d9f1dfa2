"""Ways out of a sandbox, tried from inside one as the product opens it. Nothing but loopback is ever dialed."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from milepost.ports.sandbox import Exec, ReadFile, Sandbox, SandboxLimits, WriteFile
from milepost.sandboxes.podman.spec import ADDRESS
from tests.sandbox.boxes import new_id
from tests.support.podman import OpenSandbox

pytestmark = pytest.mark.podman
MIB = 1024 * 1024

CONNECT = """
import socket, sys
unix = socket.AF_UNIX
for family, address in ((socket.AF_INET, ("127.0.0.1", {port})), (unix, "\\0{name}"), (unix, "{path}")):
    s = socket.socket(family)
    s.settimeout(5)
    try:
        s.connect(address)
        print("reached", address)
    except OSError as error:
        print("not reached", error.errno)
"""

SUPERVISOR = """
import ctypes, os
for name in ("environ", "mem", "maps", "root/etc/passwd", "cwd/x", "fd"):
    path = "/proc/1/" + name
    try:
        (os.listdir if name == "fd" else lambda p: open(p, "rb").read(16))(path)
        print("read", path)
    except OSError as error:
        print("closed", name)
libc = ctypes.CDLL(None, use_errno=True)
print("ptrace", libc.ptrace(16, 1, 0, 0))
kernel = "/proc/sys/kernel/core_pattern"
for path in ("/proc/sysrq-trigger", kernel, "/proc/sys/vm/drop_caches", "/sys/kernel/mm/ksm/run"):
    try:
        open(path, "w").write("x")
        print("wrote", path)
    except OSError:
        print("refused", path)
for path in ("/proc/kcore", "/dev/mem", "/dev/kmsg"):
    try:
        print("read", path, open(path, "rb").read(16) != b"")
    except OSError:
        print("closed", path)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


async def said(sandbox: Sandbox, command: str) -> str:
    outcome = await sandbox.perform(new_id(), Exec(command, timeout=60))
    return outcome.stdout.decode() + outcome.stderr.decode()


async def python(sandbox: Sandbox, source: str) -> str:
    await sandbox.perform(new_id(), WriteFile(".try.py", source.encode()))
    return await said(sandbox, "python3 .try.py")


async def test_what_listens_on_this_host_is_out_of_reach(sandbox: OpenSandbox, workspace: Path, tmp_path: Path) -> None:
    """As API, Temporal and database do: on loopback, on an abstract socket, on one in the file system."""
    servers = [socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    name, path = f"milepost-test-{os.getpid()}", str(tmp_path / "s")
    servers[0].bind(("127.0.0.1", 0))
    servers[1].bind(f"\0{name}")
    servers[2].bind(path)
    for server in servers:
        server.listen(4)
    box = await sandbox(workspace)
    text = await python(box, CONNECT.format(port=servers[0].getsockname()[1], name=name, path=path))
    assert "reached" not in text.replace("not reached", ""), text
    assert text.count("not reached") == 3, text
    # The control: from here all three answer.
    for family, address in (
        (socket.AF_INET, servers[0].getsockname()),
        (socket.AF_UNIX, f"\0{name}"),
        (socket.AF_UNIX, path),
    ):
        with socket.socket(family) as client:
            client.connect(address)
    for server in servers:
        server.close()


async def test_the_supervisor_and_the_kernel_are_closed(sandbox: OpenSandbox, workspace: Path) -> None:
    text = await python(await sandbox(workspace), SUPERVISOR)
    lines = text.splitlines()
    assert [line for line in lines if line.startswith(("read", "wrote"))] in ([], ["read /proc/kcore False"]), text
    assert "ptrace -1" in lines
    assert len([line for line in lines if line.startswith(("closed", "refused"))]) >= 11, text


KNOCK = """
import socket
s = socket.socket(socket.AF_UNIX)
s.settimeout(10)
s.connect("\\0{address}")
print("heard", s.recv(65536))
"""


async def test_no_command_is_taken_for_the_worker(sandbox: OpenSandbox, workspace: Path) -> None:
    """Whoever the supervisor listens to could run, kill and answer for others."""
    assert await python(await sandbox(workspace), KNOCK.format(address=ADDRESS)) == "heard b''\n"


async def test_nothing_special_is_made_or_left_for_the_host(sandbox: OpenSandbox, workspace: Path) -> None:
    """No devices, no set-id files, no files of root; links to what is elsewhere lead nowhere."""
    box = await sandbox(workspace)
    text = await said(
        box,
        "mknod null c 1 3; mknod disk b 259 0; cp /bin/cat cat; chmod 6755 cat; chmod 4755 cat; "
        "install -m 4755 /bin/cat installed; ln /etc/passwd hard; mkfifo pipe; "
        "python3 -c 'import os; os.chmod(\"cat\", 0o6755)'",
    )
    assert "Operation not permitted" in text
    owner = await asyncio.to_thread(lambda: workspace.stat().st_uid)
    made = await asyncio.to_thread(lambda: {path.name: path.lstat() for path in workspace.iterdir()})
    for name, found in made.items():
        assert not stat.S_ISCHR(found.st_mode) and not stat.S_ISBLK(found.st_mode), name
        assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID), name
        assert found.st_uid == owner
    assert {"cat", "pipe"} <= made.keys()
    assert "hard" not in made
    refused = await box.perform(new_id(), ReadFile("pipe"))
    assert refused.error_code == "invalid"


async def test_a_flood_of_processes_and_bytes_leaves_others_at_work(
    sandbox: OpenSandbox, workspace: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    box = await sandbox(workspace, limits=SandboxLimits(pids=64))
    neighbor = await sandbox(other)
    started = asyncio.Event()
    effect = new_id()
    bomb = asyncio.create_task(box.perform(effect, Exec("echo x; b() { b | b & b; }; b"), lambda *_: started.set()))
    async with asyncio.timeout(60):
        await started.wait()
    assert await said(neighbor, "echo fine") == "fine\n"
    await box.kill(effect)
    assert (await bomb).killed
    flood = await box.perform(new_id(), Exec("head -c 40000000 /dev/zero | tr '\\0' x", timeout=60))
    assert flood.truncated
    assert len(flood.stdout) <= 17 * MIB
    full = await said(
        box, "head -c 600000000 /dev/zero 2>/dev/null > /tmp/full; echo code $?; stat -c %s /tmp/full; rm /tmp/full"
    )
    assert "code 1" in full
    assert int(full.split()[-1]) <= 512 * MIB
    assert await said(neighbor, "echo fine") == "fine\n"


async def test_environment_variables_of_this_process_are_not_inside(
    sandbox: OpenSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_SECRET", "canary-of-the-host")
    box = await sandbox(workspace, environment={"ALLOWED": "yes"})
    text = await said(box, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
    assert "ALLOWED=yes" in text
    assert "canary-of-the-host" not in text


FORKS = """
import os, signal, time
made = []
for _ in range(300):
    try:
        pid = os.fork()
    except OSError as error:
        print(error.errno, end=" ")
        break
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    made.append(pid)
print(len(made))
for pid in made:
    os.kill(pid, signal.SIGKILL)
"""


async def test_processes_are_limited_in_number(sandbox: OpenSandbox, workspace: Path) -> None:
    number, made = (await python(await sandbox(workspace, limits=SandboxLimits(pids=64)), FORKS)).split()
    assert int(number) == errno.EAGAIN
    assert 20 < int(made) < 64


async def test_no_signal_ends_the_supervisor(sandbox: OpenSandbox, workspace: Path) -> None:
    """Every one of them; what runs beside it meanwhile is neither lost nor begun again."""
    box = await sandbox(workspace)
    started = asyncio.Event()
    await said(box, "mkfifo go")
    beside = asyncio.create_task(
        box.perform(new_id(), Exec("echo run >> runs; echo x; read _ < go; cat runs"), lambda *_: started.set())
    )
    async with asyncio.timeout(60):
        await started.wait()
    await said(box, "for n in $(seq 64); do kill -$n 1; done 2>/dev/null")
    assert await said(box, "echo > go; echo fine") == "fine\n"
    assert (await beside).stdout == b"x\nrun\n"


async def test_what_takes_the_place_of_a_file_is_neither_read_nor_waited_for(
    sandbox: OpenSandbox, workspace: Path
) -> None:
    """Pipes and sockets would hold a reader for ever, devices have no end."""
    box = await sandbox(workspace)
    make = "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
    await said(box, f'mkfifo pipe; python3 -c "{make}"; ln -s /dev/zero zero; ln -s /proc/1/environ environ')
    for name in ("pipe", "socket", "zero", "environ"):
        refused = await box.perform(new_id(), ReadFile(name))
        assert refused.error_code in ("invalid", "outside_workspace"), (name, refused.error_code)
        if name in ("pipe", "socket"):
            assert refused.error == f"{name} is not a regular file."
        refused = await box.perform(new_id(), WriteFile(name, b"x"))
        assert refused.error_code in ("invalid", "outside_workspace"), (name, refused.error_code)
