"""The supervisor in plain namespaces of this machine, without a container, for tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

from milepost.domain.errors import SandboxUnsupported
from milepost.ports.sandbox import Holding, Sandbox, SandboxHealth, SandboxLimits, SandboxSpec
from milepost.sandboxes import bundle
from milepost.sandboxes.client import LinkDown, SandboxGone, SupervisorClient
from tests.support.needs import unavailable

HOST_PYTHON = "/usr/bin/python3"
NO_LIMITS = (SandboxLimits().memory_bytes, SandboxLimits().cpus, SandboxLimits().pids)


class SocketLink:
    """A link over the supervisor's own socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def receive(self) -> bytes:
        return await self._reader.read(65536)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()


class LocalSupervisor:
    """The supervisor as the first process of a PID namespace, on a directory of the host."""

    def __init__(
        self, workspace: Path | None = None, limits: SandboxLimits | None = None, alone_seconds: float = 3600
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mps-"))
        self.workspace = workspace or self.folder / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self.home = self.folder / "home"
        self.home.mkdir()
        user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        python = HOST_PYTHON if Path(HOST_PYTHON).exists() else sys.executable
        command = ["unshare", *user, "--pid", "--mount", "--mount-proc", "--fork", "--kill-child", "--", python]
        environment = bundle.supervisor_environment(
            str(self.workspace),
            self.address,
            str(self.home),
            alone_seconds=alone_seconds,
            disk=bundle.disk_config(limits or SandboxLimits(), str(self.workspace), {}),
        )
        self.process = subprocess.Popen(
            [*command, *bundle.SUPERVISOR_COMMAND[1:]],
            stdin=subprocess.DEVNULL,
            env={**environment, "PATH": os.defpath, "IMAGE_SETTING": "kept"},
        )

    @property
    def address(self) -> str:
        return self.folder.name

    async def connect(self) -> SocketLink:
        async with asyncio.timeout(20):
            while True:
                try:
                    return SocketLink(*await asyncio.open_unix_connection("\0" + self.address))
                except OSError:
                    if self.process.poll() is not None:
                        raise SandboxGone("The supervisor has ended.") from None
                    await asyncio.sleep(0.02)

    def client(self, environment: dict[str, str] | None = None) -> SupervisorClient:
        return SupervisorClient(self.connect, environment)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class LocalSandboxes:
    """A provider of such supervisors. It has no images, networks, ports or volumes, and refuses who asks for one."""

    def __init__(self) -> None:
        self._supervisors: dict[str, LocalSupervisor] = {}
        self._clients: dict[str, SupervisorClient] = {}
        self._others: list[SupervisorClient] = []

    async def check(self) -> SandboxHealth:
        return SandboxHealth(ok=True, detail="plain namespaces", unenforced=("memory", "cpus"))

    async def open(self, spec: SandboxSpec) -> Sandbox:
        for what, asked in (
            ("image", spec.image),
            ("network", spec.network != "none"),
            ("ports", spec.ports),
            ("volumes", spec.volumes),
            ("limits", (spec.limits.memory_bytes, spec.limits.cpus, spec.limits.pids) != NO_LIMITS),
        ):
            if asked:
                raise SandboxUnsupported(f"Plain namespaces have no {what} to choose.", field=what)
        found = self._supervisors.get(spec.session_id)
        if found is None or found.process.poll() is not None:
            await self.remove(spec.session_id)
            found = self._supervisors[spec.session_id] = LocalSupervisor(Path(spec.workspace_path), spec.limits)
            self._clients[spec.session_id] = found.client(spec.environment)
        client = self._clients[spec.session_id]
        with suppress(LinkDown):
            await client.hello()
        return client

    def another(self, session_id: str) -> SupervisorClient:
        """What a second worker would use."""
        self._others.append(self._supervisors[session_id].client())
        return self._others[-1]

    def end(self, session_id: str) -> None:
        """Kill the supervisor and all that runs under it."""
        self._supervisors[session_id].process.kill()
        self._supervisors[session_id].process.wait()

    async def sessions(self) -> frozenset[str]:
        return frozenset(self._supervisors)

    async def remove(self, session_id: str) -> None:
        client, found = self._clients.pop(session_id, None), self._supervisors.pop(session_id, None)
        if client is not None:
            await client.close()
        if found is not None:
            found.close()

    async def destroy(self, session_id: str) -> None:
        await self.remove(session_id)

    async def holdings(self) -> tuple[Holding, ...]:
        return tuple(Holding("container", name, name, 1, "") for name in sorted(self._supervisors))

    async def discard(self, holding: Holding) -> None:
        await self.remove(holding.session_id)

    async def close(self) -> None:
        for client in self._others:
            await client.close()
        for session_id in list(self._supervisors):
            await self.remove(session_id)


def require_namespaces() -> None:
    """End the test where nobody may make the namespaces that a local supervisor needs."""
    probe = ["unshare", "--map-root-user", "--pid", "--mount", "--mount-proc", "--fork", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode != 0:
        unavailable("unshare", "this machine lets nobody make namespaces")


def new_id() -> str:
    return uuid.uuid4().hex


def clean(workspace: Path) -> None:
    """Empty the directory but keep it: it is mounted."""
    for path in workspace.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
