"""The two places the conformance suite runs in: a supervisor in plain namespaces, and one in a Podman container."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from milepost.ports.sandbox import Exec, OnOutput, Operation, Outcome, Sandbox
from milepost.sandboxes import bundle
from milepost.sandboxes.client import SupervisorClient

HOST_PYTHON = "/usr/bin/python3"


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

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mps-"))
        self.workspace = self.folder / "workspace"
        self.workspace.mkdir()
        self.home = self.folder / "home"
        self.home.mkdir()
        user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        python = HOST_PYTHON if Path(HOST_PYTHON).exists() else sys.executable
        command = ["unshare", *user, "--pid", "--mount", "--mount-proc", "--fork", "--kill-child", "--", python]
        environment = bundle.supervisor_environment(
            str(self.workspace), self.address, str(self.home), alone_seconds=3600
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
                        raise RuntimeError("the supervisor has ended") from None
                    await asyncio.sleep(0.02)

    def client(self, environment: dict[str, str] | None = None) -> SupervisorClient:
        return SupervisorClient(self.connect, environment)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class Box:
    """A sandbox under test; `another` gives the view of a second worker process."""

    sandbox: Sandbox
    workspace: Path
    root: str
    another: Callable[[], Awaitable[Sandbox]]
    privileged: bool

    async def run(self, operation: Operation, on_output: OnOutput | None = None) -> Outcome:
        return await self.sandbox.perform(new_id(), operation, on_output)

    async def sh(self, command: str) -> Outcome:
        return await self.run(Exec(command, timeout=60))

    async def processes(self, marker: str) -> list[str]:
        """Command lines in the sandbox that begin with `marker`."""
        script = "for d in /proc/[0-9]*; do tr '\\0' ' ' <$d/cmdline; echo; done 2>/dev/null"
        lines = (await self.sh(script)).stdout.decode().splitlines()
        return [line for line in lines if line.startswith(marker)]


def new_id() -> str:
    return uuid.uuid4().hex


def clean(workspace: Path) -> None:
    """Empty the directory but keep it: it is mounted."""
    for path in workspace.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
