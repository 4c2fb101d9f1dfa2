"""Fixtures of the sandbox suites. They share one event loop, so that one connection serves all tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from milepost.ports.sandbox import Sandbox, SandboxSpec
from milepost.sandboxes.podman.provider import PodmanProvider
from tests.sandbox.boxes import Box, LocalSupervisor, clean
from tests.support.needs import unavailable
from tests.support.podman import new_instance, remove_owned

ENVIRONMENT = {"ALLOWED": "yes"}


@dataclass
class SharedContainer:
    """One container for the whole conformance suite: a new one for each test would take minutes."""

    root: Path
    provider: PodmanProvider
    spec: SandboxSpec

    @property
    def workspace(self) -> Path:
        return Path(self.spec.workspace_path)


@pytest.fixture(scope="session")
def local_supervisor() -> Iterator[LocalSupervisor]:
    """One supervisor in a PID namespace for all tests that can share it."""
    probe = ["unshare", "--map-root-user", "--pid", "--mount", "--mount-proc", "--fork", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode != 0:
        unavailable("unshare", "this machine lets nobody make namespaces")
    supervisor = LocalSupervisor()
    yield supervisor
    supervisor.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_container(
    podman_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SharedContainer]:
    instance = new_instance()
    workspace = tmp_path_factory.mktemp("shared")
    provider = PodmanProvider(podman_root, instance)
    yield SharedContainer(
        podman_root, provider, SandboxSpec("shared", instance, str(workspace), environment=ENVIRONMENT)
    )
    await remove_owned(provider)
    await provider.close()


@pytest_asyncio.fixture(loop_scope="session")
async def local_box(local_supervisor: LocalSupervisor) -> AsyncIterator[Box]:
    clean(local_supervisor.workspace)
    clients = [local_supervisor.client(ENVIRONMENT)]

    async def another() -> Sandbox:
        clients.append(local_supervisor.client(ENVIRONMENT))
        return clients[-1]

    yield Box(clients[0], local_supervisor.workspace, str(local_supervisor.workspace), another, privileged=True)
    for client in clients:
        await client.close()


@pytest_asyncio.fixture(loop_scope="session")
async def podman_box(shared_container: SharedContainer) -> AsyncIterator[Box]:
    clean(shared_container.workspace)
    spec, others = shared_container.spec, list[PodmanProvider]()

    async def another() -> Sandbox:
        others.append(PodmanProvider(shared_container.root, spec.instance_id))
        return await others[-1].open(spec)

    sandbox = await shared_container.provider.open(spec)
    yield Box(sandbox, shared_container.workspace, "/workspace", another, privileged=False)
    for provider in others:
        await provider.close()


@pytest.fixture(params=["local", pytest.param("podman", marks=pytest.mark.podman)])
def box(request: pytest.FixtureRequest) -> Box:
    """A sandbox with an empty workspace, in plain namespaces and in Podman."""
    found: Box = request.getfixturevalue(f"{request.param}_box")
    return found
