"""The back ends under test, and what each claims.

A test names what it needs (`@pytest.mark.needs(Capability.SHELL)`) and runs on every back end that claims all of it.
What a back end does not claim it must refuse by name: `test_refusals` asks each one for each of those.

A further back end is a class like those below, an entry in `CLAIMS`, and a fixture `NAME_backend` in `conftest`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from milepost.ports.sandbox import Exec, OnOutput, Operation, Outcome, Sandbox, SandboxProvider, SandboxSpec
from milepost.sandboxes.e2b.provider import E2BProvider
from milepost.sandboxes.e2b.settings import E2BSettings
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.sandboxes.podman.sandbox import PodmanSandbox
from tests.sandbox.boxes import LocalSandboxes, clean, new_id
from tests.support.e2b import KEY, Double
from tests.support.podman import new_instance, remove_owned
from tests.support.sandboxes import MemorySandboxes

ENVIRONMENT = {"ALLOWED": "yes"}


class Capability(StrEnum):
    """What a test may need beside what every back end must do: whole files, ids that run once, Sessions apart."""

    SHELL = "shell"
    """Commands are run, in processes of a system of their own."""
    INPUT = "input"
    """Commands read what they are given."""
    PROCESSES = "processes"
    """Background commands that outlive their call."""
    TERMINALS = "terminals"
    FOLDER = "folder"
    """The Workspace is a folder: edits, listings, links, names of any bytes."""
    SEARCH = "search"
    HOST_FOLDER = "host folder"
    """That folder is one of this host, and files that are made in it belong to its owner."""
    USER = "user"
    """Commands run as an ordinary user in a system they cannot change."""
    PORTS = "ports"
    """Servers in the sandbox can be reached from this host's loopback."""
    NETWORK = "network"
    """A Session may choose its network."""
    IMAGES = "images"
    """A Session may name its image."""
    VOLUMES = "volumes"
    """What a setup command installed outlives the container."""
    DISK = "disk"
    """What the Workspace may hold is bounded."""
    GUARDED = "guarded"
    """No command can end what runs the sandbox."""
    RESTART = "restart"
    """The machine under the sandbox can be restarted; its files stay."""


ALL = frozenset(Capability)
CLAIMS: dict[str, frozenset[Capability]] = {
    "local": ALL - {Capability.USER, Capability.PORTS, Capability.NETWORK, Capability.IMAGES, Capability.VOLUMES},
    "podman": ALL,
    "e2b": ALL - {Capability.USER, Capability.IMAGES, Capability.HOST_FOLDER, Capability.RESTART, Capability.GUARDED},
    "memory": frozenset(),
}
"""By back end. `local` is the supervisor in plain namespaces of this machine; `memory` runs nothing at all."""


@dataclass
class Box:
    """A sandbox under test. `workspace` is its folder as the test sees it, `root` as commands see it."""

    sandbox: Sandbox
    spec: SandboxSpec
    workspace: Path
    root: str
    privileged: bool
    another: Callable[[], Awaitable[Sandbox]]
    """The view of a second worker process."""

    async def run(self, operation: Operation, on_output: OnOutput | None = None) -> Outcome:
        return await self.sandbox.perform(new_id(), operation, on_output)

    async def sh(self, command: str) -> Outcome:
        return await self.run(Exec(command, timeout=60))

    async def processes(self, marker: str) -> list[str]:
        """Command lines in the sandbox that begin with `marker`."""
        script = "for d in /proc/[0-9]*; do tr '\\0' ' ' <$d/cmdline; echo; done 2>/dev/null"
        lines = (await self.sh(script)).stdout.decode().splitlines()
        return [line for line in lines if line.startswith(marker)]

    async def start(self, effect: str, command: str) -> asyncio.Task[Outcome]:
        """A command that has put something out and runs on."""
        started = asyncio.Event()
        task = asyncio.create_task(self.sandbox.perform(effect, Exec(command), lambda *_: started.set()))
        async with asyncio.timeout(30):
            await started.wait()
        return task


class Backend(Protocol):
    """One back end with an instance of its own."""

    name: str
    provider: SandboxProvider

    async def box(self) -> Box:
        """A sandbox that tests share, with an empty Workspace."""

    async def open(self, folder: Path, session: str, **choices: Any) -> Box:
        """A Session's sandbox on an empty folder."""

    async def cut(self, box: Box) -> None:
        """Break the connection to the sandbox, as a network would."""

    async def restart(self, box: Box) -> None:
        """End what runs the sandbox from outside, as a machine that goes down would."""

    async def close(self) -> None: ...


@dataclass
class LocalBackend:
    """See `LocalSandboxes`. Commands are root of their namespaces there."""

    folder: Path
    name: str = "local"
    provider: LocalSandboxes = field(default_factory=LocalSandboxes)

    async def box(self) -> Box:
        self.folder.mkdir(exist_ok=True)
        clean(self.folder)
        return await self.open(self.folder, "shared")

    async def open(self, folder: Path, session: str, **choices: Any) -> Box:
        spec = SandboxSpec(session, "local", str(folder), environment=ENVIRONMENT, **choices)
        sandbox = await self.provider.open(spec)

        async def another() -> Sandbox:
            return self.provider.another(session)

        return Box(sandbox, spec, folder, str(folder), True, another)

    async def cut(self, box: Box) -> None:
        await box.sandbox._connection.link.close()  # type: ignore[attr-defined]

    async def restart(self, box: Box) -> None:
        self.provider.end(box.spec.session_id)

    async def close(self) -> None:
        await self.provider.close()


@dataclass
class E2BBackend:
    """E2B's own SDK and the double of its service. A sandbox of the service is paused or gone, never restarted.

    Commands are root here, so that tests can put files into the Workspace from outside.
    """

    double: Double
    folder: Path
    name: str = "e2b"
    provider: E2BProvider = field(init=False)
    others: list[E2BProvider] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.provider = self._made("conformance")

    def _made(self, instance: str) -> E2BProvider:
        settings = E2BSettings(key=lambda: KEY, api_url=self.double.url, sandbox_url=self.double.url)
        return E2BProvider(settings, instance)

    async def box(self) -> Box:
        self.folder.mkdir(exist_ok=True)
        found = await self.open(self.folder, "shared")
        clean(found.workspace)
        return found

    async def open(self, folder: Path, session: str, **choices: Any) -> Box:
        spec = SandboxSpec(session, self.provider.instance_id, str(folder), environment=ENVIRONMENT, **choices)
        sandbox = await self.provider.open(spec)
        placement = sandbox.placement
        assert placement is not None

        async def another() -> Sandbox:
            self.others.append(self._made(spec.instance_id))
            return await self.others[-1].open(replace(spec, fresh=False, placement=placement))

        workspace = self.double.machines[placement.sandbox_id].home / "workspace"
        return Box(sandbox, spec, workspace, placement.root, True, another)

    async def cut(self, box: Box) -> None:
        assert box.sandbox.placement is not None
        self.double.cut(box.sandbox.placement.sandbox_id)

    async def restart(self, box: Box) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for provider in (*self.others, self.provider):
            await provider.close()


@dataclass
class PodmanBackend:
    """Real containers of one provider, and of one more for each further worker."""

    root: Path
    folder: Path
    name: str = "podman"
    options: dict[str, Any] = field(default_factory=dict)
    """Of the providers."""
    owner: int | None = None
    """Whom the Workspaces belong to, if not to this process."""
    provider: PodmanProvider = field(init=False)
    others: list[PodmanProvider] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.provider = PodmanProvider(self.root, new_instance(), **self.options)

    async def box(self) -> Box:
        self.folder.mkdir(exist_ok=True)
        clean(self.folder)
        return await self.open(self.folder, "shared")

    async def open(self, folder: Path, session: str, **choices: Any) -> Box:
        if self.owner is not None:
            os.chown(folder, self.owner, self.owner)
        spec = SandboxSpec(session, self.provider.instance_id, str(folder), environment=ENVIRONMENT, **choices)

        async def another() -> Sandbox:
            self.others.append(PodmanProvider(self.root, self.provider.instance_id, **self.options))
            return await self.others[-1].open(replace(spec, fresh=False))

        return Box(await self.provider.open(spec), spec, folder, "/workspace", False, another)

    async def cut(self, box: Box) -> None:
        await box.sandbox._client._connection.link.close()  # type: ignore[attr-defined]

    async def restart(self, box: Box) -> None:
        assert isinstance(box.sandbox, PodmanSandbox)
        api = await self.provider._service.api()
        await api.kill(box.sandbox.container_id)
        async with asyncio.timeout(30):
            while (found := await api.container(box.sandbox.container_id)) and found["State"].get("Running"):
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        for provider in self.others:
            await provider.close()
        await remove_owned(self.provider)
        with contextlib.suppress(Exception):
            await self.provider.close()


@dataclass
class MemoryBackend:
    """The double that tests of what stands above the port use."""

    folder: Path
    name: str = "memory"
    provider: MemorySandboxes = field(default_factory=MemorySandboxes)

    async def box(self) -> Box:
        return await self.open(self.folder, new_id())

    async def open(self, folder: Path, session: str, **choices: Any) -> Box:
        spec = SandboxSpec(session, "memory", str(folder), **choices)
        sandbox = await self.provider.open(spec)

        async def another() -> Sandbox:
            return sandbox

        return Box(sandbox, spec, folder, "", False, another)

    async def cut(self, box: Box) -> None:
        """It has no connection."""

    async def restart(self, box: Box) -> None:
        self.provider.by_session[box.spec.session_id].lost = True

    async def close(self) -> None:
        await self.provider.close()
