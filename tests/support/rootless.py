"""A Podman service of a real ordinary user of this machine, made for one test run and removed with it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from milepost.domain.errors import SandboxUnavailable
from milepost.sandboxes.podman.api import PodmanApi
from milepost.sandboxes.podman.service import Host
from tests.support.podman import alone

TOOLS = ("useradd", "userdel", "runuser", "podman", "newuidmap")
START_SECONDS = 60.0


@dataclass(frozen=True)
class Rootless:
    """`socket` is the user's service; `folder` may be used by both, and `user` owns what lies in `own`."""

    user: str
    uid: int
    socket: str
    folder: Path

    def workspace(self, name: str) -> Path:
        """A private folder of the user's."""
        path = self.folder / name
        path.mkdir(mode=0o700)
        shutil.chown(path, self.uid, self.uid)
        return path


@contextmanager
def rootless_service() -> Iterator[Rootless]:
    """Raises SandboxUnavailable where none can be had: only root can make a user."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.getuid() != 0 or missing:
        raise SandboxUnavailable(f"only root can make a user, with {', '.join(TOOLS)}")
    user = f"mp-rootless-{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix="mp-rl-"))
    folder.chmod(0o755)
    _run("useradd", "--create-home", "--home-dir", str(folder / "home"), "--shell", "/bin/sh", user)
    try:
        first = _free_range()
        for kind in ("uids", "gids"):
            _run("usermod", f"--add-sub{kind}", f"{first}-{first + 65535}", user)
        entry = pwd.getpwnam(user)
        with _serving(user, entry.pw_uid, folder) as socket:
            yield Rootless(user, entry.pw_uid, socket, folder)
    finally:
        _run("userdel", "--force", user)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _serving(user: str, uid: int, folder: Path) -> Iterator[str]:
    run = folder / "run"
    run.mkdir(mode=0o700)
    shutil.chown(run, uid, uid)
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(run),
    }
    # The same choices as the product's own service makes for a user.
    runtime = ["--runtime=runc"] if Host.detect().hybrid_cgroups else []
    podman = ["runuser", "-u", user, "--", "podman", *runtime, "--storage-driver=overlay"]
    socket = str(run / "podman.sock")
    with (folder / "service.log").open("wb") as log:
        service = subprocess.Popen(
            [*podman, "system", "service", "--time=0", f"unix://{socket}"],
            env=environment,
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not alone(lambda: _answers(socket)):
            if service.poll() is not None or time.monotonic() > deadline:
                text = (folder / "service.log").read_text(errors="replace")[-1000:]
                raise SandboxUnavailable(f"the service of an ordinary user does not start: {text}")
            time.sleep(0.1)
        yield socket
    finally:
        service.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.wait(10)
        subprocess.run([*podman, "system", "reset", "--force"], env=environment, cwd=folder, capture_output=True)
        _end_processes(uid)


async def _answers(socket: str) -> bool:
    api = PodmanApi(socket)
    try:
        return await api.ping()
    finally:
        await api.close()


def _free_range() -> int:
    taken = [100_000]
    for path in (Path("/etc/subuid"), Path("/etc/subgid")):
        for line in path.read_text().splitlines() if path.exists() else ():
            _, start, size = line.split(":")
            taken.append(int(start) + int(size))
    return max(taken)


def _end_processes(uid: int) -> None:
    """The pause process, which keeps the user's namespaces."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == uid:
                os.kill(int(entry.name), 9)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
