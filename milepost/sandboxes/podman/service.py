"""Finds a Podman service, or runs one of our own while it is needed."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pwd
import re
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from milepost.domain.errors import SandboxUnavailable
from milepost.sandboxes.podman import machines
from milepost.sandboxes.podman.api import PodmanApi

READY_SECONDS = 20.0
STOP_SECONDS = 5.0
IDLE_SECONDS = 600
"""A service that the kernel did not end with its owner ends by itself after this time without a connection."""

MINIMUM_VERSION = (4, 3)
_PR_SET_PDEATHSIG = 1

UNIFIED = "/sys/fs/cgroup/unified"
MAX_SOCKET_PATH = 100
"""A Unix socket's address holds 108 bytes."""

INSTALL = "sudo apt-get install -y --no-install-recommends podman crun conmon netavark catatonit uidmap slirp4netns"


@dataclass(frozen=True, slots=True)
class Host:
    """What decides how Podman is run here. Paths are for tests."""

    uid: int
    hybrid_cgroups: bool
    podman: str | None

    @classmethod
    def detect(cls) -> Host:
        search = ":".join((os.defpath, "/usr/local/bin", "/usr/sbin", "/sbin"))
        return cls(os.getuid(), os.path.ismount(UNIFIED), shutil.which("podman", path=search))

    @property
    def root(self) -> bool:
        return self.uid == 0


class PodmanService:
    """One API socket: given, found, or served by a `podman system service` process of our own.

    An own service lives as long as this object, and no longer than its process; containers outlive it. `environment` is
    added to its otherwise small environment, so that no secret of this process reaches it.
    """

    def __init__(
        self, data_root: Path, socket: str | None, runtime_dir: Path | None, environment: Mapping[str, str] | None
    ) -> None:
        self.host = Host.detect()
        self._data_root = data_root
        self._given = socket.removeprefix("unix://") if socket else None
        self._runtime_dir = runtime_dir or Path(f"/run/user/{self.host.uid}")
        self._extra = dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._api: PodmanApi | None = None
        self._lock = asyncio.Lock()

    @property
    def given(self) -> bool:
        """Whether somebody else runs the service."""
        return self._given is not None

    async def api(self) -> PodmanApi:
        """A client of a service that answers now: the one in use, one that is found, or an own one, started (again).

        Raises SandboxUnavailable.
        """
        async with self._lock:
            if self._api is not None and await self._api.ping():
                return self._api
            await self._drop()
            self._api = await self._find() or await self._start()
            return self._api

    async def _find(self) -> PodmanApi | None:
        if self._given:
            api = PodmanApi(self._given)
            if await api.ping():
                return api
            await api.close()
            raise SandboxUnavailable(
                f"No Podman service answers at {self._given}.",
                fix="Start it (systemctl --user start podman.socket), or remove sandbox.socket from the configuration.",
            )
        if not sys.platform.startswith("linux"):
            return await self._machine()
        if not self.host.root:
            path = self._runtime_dir / "podman" / "podman.sock"
            if path.exists():
                api = PodmanApi(str(path))
                if await api.ping(10.0):
                    return api
                await api.close()
        return None

    async def _machine(self) -> PodmanApi:
        """The service of the virtual machine that Podman needs on this system; one that is stopped is started.

        Raises SandboxUnavailable: there is none, or it does not start. None is ever made.
        """
        if self.host.podman is None:
            raise SandboxUnavailable("Podman is not installed, so tools cannot run.", fix="See https://podman.io")
        api = PodmanApi(await machines.ready(self.host.podman, self.environment()))
        if await api.ping(10.0):
            return api
        await api.close()
        raise SandboxUnavailable(
            "The Podman machine does not answer.", fix="Try: podman machine stop; podman machine start"
        )

    async def _start(self) -> PodmanApi:
        if self.host.podman is None:
            raise SandboxUnavailable("Podman is not installed, so tools cannot run.", fix=f"Install it: {INSTALL}")
        socket = self.socket_path()
        api = PodmanApi(str(socket))
        if await api.ping():
            # Another process of this instance serves it.
            return api
        await self._check_version(self.host.podman)
        socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        socket.unlink(missing_ok=True)
        log = self._data_root / "podman-service.log"
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self.command(self.host.podman, socket),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(),
                # The container monitor writes a file "oom" where it runs when a container meets its memory limit.
                cwd=self._data_root,
                start_new_session=True,
                preexec_fn=_end_with_parent(),
            )
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not await api.ping():
            if self._process.returncode is not None or asyncio.get_running_loop().time() > deadline:
                await api.close()
                await self._stop_process()
                reason = log.read_text(errors="replace")[-1500:].strip()
                raise SandboxUnavailable(
                    f"The Podman service does not start: {reason or 'it said nothing'}.",
                    fix=f"Try by hand: {self.host.podman} system service --time=0 unix:///tmp/podman.sock",
                )
            await asyncio.sleep(0.05)
        return api

    def socket_path(self) -> Path:
        """Where the own service listens."""
        path = self._data_root / "run" / "podman.sock"
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise SandboxUnavailable(
                f"The path of the data root is too long for a socket: {path}.",
                fix=f"Choose a data root with a path of at most {MAX_SOCKET_PATH - 20} bytes.",
            )
        return path

    def command(self, podman: str, socket: Path) -> list[str]:
        """The own service. As root beside cgroup v1, a mounted v2 tree breaks exec: it gets a view without that."""
        command = [podman, *self._global_options(), "system", "service", f"--time={IDLE_SECONDS}", f"unix://{socket}"]
        if self.host.root and self.host.hybrid_cgroups:
            unshare, shell = shutil.which("unshare") or "unshare", "/bin/sh"
            script = f'umount {UNIFIED} && exec "$@"'
            return [unshare, "--mount", "--propagation", "slave", "--", shell, "-c", script, "sh", *command]
        return command

    def _global_options(self) -> list[str]:
        options = ["--log-level=warn"]
        if self.host.root:
            # The runtime that can bind a folder with translated owners.
            options.append("--runtime=crun")
        elif self.host.hybrid_cgroups:
            # crun refuses a user's containers beside both cgroup versions.
            options.append("--runtime=runc")
        home = Path(pwd.getpwuid(self.host.uid).pw_dir)
        configured = [Path("/etc/containers/storage.conf"), home / ".config/containers/storage.conf"]
        used = [home / ".local/share/containers/storage", Path("/var/lib/containers/storage")]
        store = used[1 if self.host.root else 0]
        # Up to 4.x, and from 5.0 on where none of the old kind was there. Either has the driver of what is stored.
        databases = [store / "libpod" / "bolt_state.db", store / "db.sql"]
        if not any(path.exists() for path in (*configured, *databases)):
            # Without a configuration old versions choose vfs for users: a full copy of the image per container.
            options.append("--storage-driver=overlay")
        return options

    def environment(self) -> dict[str, str]:
        """Of the own service."""
        account = pwd.getpwuid(self.host.uid)
        base = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": account.pw_dir,
            "USER": account.pw_name,
            "LANG": "C.UTF-8",
        }
        if not self.host.root and self._runtime_dir.is_dir():
            base["XDG_RUNTIME_DIR"] = str(self._runtime_dir)
            bus = self._runtime_dir / "bus"
            if bus.exists():
                base["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={bus}"
        return base | self._extra

    async def _check_version(self, podman: str) -> None:
        process = await asyncio.create_subprocess_exec(
            podman,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self.environment(),
        )
        try:
            async with asyncio.timeout(READY_SECONDS):
                out, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            raise SandboxUnavailable(f"{podman} --version does not answer.", fix="Repair the installation.") from None
        check_version(out.decode(errors="replace"))

    async def _drop(self) -> None:
        if self._api is not None:
            await self._api.close()
            self._api = None
        await self._stop_process()

    async def _stop_process(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def close(self) -> None:
        """Stop an own service; containers go on."""
        async with self._lock:
            await self._drop()


def _end_with_parent() -> Callable[[], None] | None:
    """On Linux a service must not outlive a Milepost that was killed. Containers do: each has a monitor of its own."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    return set_death_signal


def check_version(text: str) -> None:
    """Raises SandboxUnavailable for a Podman that cannot map the user as needed (before 4.3)."""
    found = re.search(r"(\d+)\.(\d+)", text)
    if found and (int(found[1]), int(found[2])) < MINIMUM_VERSION:
        wanted = ".".join(map(str, MINIMUM_VERSION))
        raise SandboxUnavailable(
            f"Podman {found[0]} is too old; {wanted} or later is needed.",
            fix="Use Debian 12, Ubuntu 24.04 or later, or install a newer Podman.",
        )
