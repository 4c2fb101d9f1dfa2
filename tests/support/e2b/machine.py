"""One sandbox of the double: namespaces of this machine with a home directory, processes and a network of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOME = "/home/user"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOLD = (
    'mount -t tmpfs none /home && mkdir /home/user && mount --bind "$1" /home/user && ip link set lo up && shift '
    '&& for lacking; do mount --bind /dev/null "/usr/bin/$lacking" || exit; done && echo ready && exec sleep infinity'
)

TEMPLATES: dict[str, tuple[str, ...]] = {"base": (), "bare": ("git", "find")}
"""Name -> commands that it lacks."""


@dataclass
class Machine:
    """`body` is the request that made it. Times are of the monotonic clock."""

    body: dict[str, Any]
    ended: Callable[[Machine], None]
    sandbox_id: str = field(default_factory=lambda: "i" + secrets.token_hex(10)[:19])
    token: str = field(default_factory=lambda: "ea_" + secrets.token_hex(16))
    state: str = "running"
    user: int = 1000
    """Whom processes run as."""
    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="e2b-home-")))
    started: float = field(default_factory=time.time)
    processes: dict[int, Any] = field(default_factory=dict)
    network: Any = None
    unanswered: int = 0
    """Requests to it that the edge still answers with 502, as it may in the first moments."""
    connects: int = 0

    def __post_init__(self) -> None:
        self.timeout = int(self.body.get("timeout") or 300)
        self.network = self.body.get("network")
        os.chown(self.home, self.user, self.user)
        names = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        self._holder = subprocess.Popen(
            ["unshare", *names, "sh", "-c", _HOLD, "sh", str(self.home), *TEMPLATES[self.body["templateID"]]],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        self._first = children(self._holder.pid)[0]
        self._names = Path(f"/proc/{self._first}/ns/pid").readlink()
        self._timer: asyncio.TimerHandle | None = None
        self.arm(self.timeout)

    # --- life ----------------------------------------------------------------------------------------------------

    def arm(self, seconds: float) -> None:
        """Begin the time anew after which it is paused or killed."""
        self.end = time.time() + seconds
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.expire)

    def expire(self) -> None:
        """What happens at the end of its time."""
        if self.body.get("autoPause"):
            self.pause()
        else:
            self.kill()

    def pause(self) -> bool:
        """False if it is paused already. Streams end; processes and files stay."""
        if self.state != "running":
            return False
        self.state = "paused"
        if self._timer is not None:
            self._timer.cancel()
        self._signal(signal.SIGSTOP)
        for process in list(self.processes.values()):
            process.cut()
        return True

    def resume(self, seconds: int | None) -> bool:
        """Whether it was paused. A running one's time is never made shorter."""
        self.connects += 1
        was_paused = self.state == "paused"
        if was_paused:
            self.state = "running"
            self._signal(signal.SIGCONT)
            self._wake()
            self.arm(seconds or 300)
        elif seconds and time.time() + seconds > self.end:
            self.arm(seconds)
        return was_paused

    def kill(self) -> None:
        """End all of it."""
        if self._timer is not None:
            self._timer.cancel()
        self.state = "dead"
        for process in list(self.processes.values()):
            process.cut()
        # The kernel ends all processes of a namespace with its first one.
        os.kill(self._first, signal.SIGKILL)
        self._wake()
        self._holder.wait()
        shutil.rmtree(self.home, ignore_errors=True)
        self.ended(self)

    def inside(self) -> list[int]:
        """Processes of this machine that run in the sandbox, but for the one that holds it."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self._first:
                with contextlib.suppress(OSError):
                    if (folder / "ns/pid").readlink() == self._names:
                        found.append(int(folder.name))
        return found

    def _wake(self) -> None:
        """What went into the namespace for a process stops with it, and must go on to reap it."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.outer, signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.inside():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    # --- what a process in it is started with ----------------------------------------------------------------------

    def command(self, config: dict[str, Any]) -> list[str]:
        """The arguments that start it inside, as the ordinary user."""
        enter = ["nsenter", "--target", str(self._first), "--mount", "--net", "--pid"]
        drop = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        # The folder is looked for inside, which nsenter does before it is there.
        there = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", self.place(config)]
        return [*enter, *drop, *there, str(config["cmd"]), *map(str, config.get("args", []))]

    def place(self, config: dict[str, Any]) -> str:
        """The working directory as it is inside."""
        return str(config.get("cwd") or HOME)

    def environment(self, config: dict[str, Any]) -> dict[str, str]:
        """Nothing of this machine's."""
        base = {"PATH": PATH, "HOME": HOME, "USER": "user", "LOGNAME": "user"}
        return {**base, **(self.body.get("envVars") or {}), **(config.get("envs") or {})}

    def outside(self, path: str) -> Path:
        """Where a path of the sandbox's home lies on this machine. Raises ValueError for any other."""
        shown = os.path.normpath(path if path.startswith("/") else f"{HOME}/{path}")
        if shown != HOME and not shown.startswith(HOME + "/"):
            raise ValueError(f"the double has files under {HOME} only")
        return self.home / shown.removeprefix(HOME).lstrip("/")


def children(pid: int) -> list[int]:
    """Direct children of a process of this machine."""
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def inner(pid: int) -> int:
    """The id that a process of this machine has in its own namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[-1]) for line in lines if line.startswith("NSpid:"))
