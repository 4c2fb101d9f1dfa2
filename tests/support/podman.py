"""A ready Podman back end for tests: one service and one image per run, containers of its own instance only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from milepost.domain.errors import SandboxUnavailable
from milepost.ports.sandbox import Sandbox, SandboxSpec
from milepost.sandboxes.podman.api import PodmanApi
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.sandboxes.podman.service import PodmanService
from tests.support.needs import unavailable
from tests.support.services import SERVICES, describe

SOCKET = "MILEPOST_TEST_PODMAN_SOCKET"
"""Names the socket of a service to test with, of another version for example, instead of this machine's Podman."""

T = TypeVar("T")
OpenSandbox = Callable[..., Awaitable[Sandbox]]


def new_instance() -> str:
    """An instance id that no other test and no real instance has."""
    return f"test-{uuid.uuid4().hex[:12]}"


async def remove_owned(provider: PodmanProvider) -> None:
    """Remove all containers of the provider's instance."""
    for found in await provider.owned():
        await provider.remove(found.session_id)


def alone(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a loop of its own, also while a loop runs in this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result()


@pytest.fixture(scope="session")
def podman_root() -> Iterator[Path]:
    """A data root whose service runs for the whole run, with the default image built."""
    with contextlib.ExitStack() as stack:
        try:
            root = stack.enter_context(running_service())
        except SandboxUnavailable as error:
            unavailable("Podman", str(error))
        yield root


@contextlib.contextmanager
def running_service() -> Iterator[Path]:
    """A data root with a service of its own that has the default image. Raises SandboxUnavailable."""
    root = Path(tempfile.mkdtemp(prefix="mp-"))
    service = PodmanService(root, None, None, None)
    process: subprocess.Popen[bytes] | None = None
    try:
        process = _serve(service)
        alone(lambda: _prepare(root))
        yield root
    finally:
        if process is not None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(root, ignore_errors=True)


def _serve(service: PodmanService) -> subprocess.Popen[bytes] | None:
    """Keep the own service alive between tests; None where a user's service is used."""
    if service.host.podman is None:
        raise SandboxUnavailable("Podman is not installed.")
    socket = service.socket_path()
    socket.parent.mkdir(parents=True, exist_ok=True)
    if os.environ.get(SOCKET):
        socket.symlink_to(os.environ[SOCKET])
        return None
    command = service.command(service.host.podman, socket)
    with (socket.parent / "test-service.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=service.environment(),
            cwd=socket.parent,
        )
    deadline = time.monotonic() + 60
    while not alone(lambda: _answers(str(socket))):
        if process.poll() is not None or time.monotonic() > deadline:
            text = (socket.parent / "test-service.log").read_text(errors="replace")[-2000:]
            raise SandboxUnavailable(f"The Podman service does not start: {text}")
        time.sleep(0.05)
    return process


async def _answers(socket: str) -> bool:
    api = PodmanApi(socket)
    try:
        return await api.ping()
    finally:
        await api.close()


async def _prepare(root: Path) -> None:
    provider = PodmanProvider(root, new_instance())
    try:
        await provider.build_image()
        health = await provider.check()
        if not health.ok:
            raise SandboxUnavailable(health.detail, fix=health.fix)
        SERVICES["podman_root"] = describe(health)
    finally:
        await provider.close()


@pytest.fixture
async def podman(podman_root: Path) -> AsyncIterator[PodmanProvider]:
    """A provider of an instance of its own; its containers are removed afterwards."""
    provider = PodmanProvider(podman_root, new_instance())
    try:
        yield provider
    finally:
        await remove_owned(provider)
        await provider.close()


@pytest.fixture
def sandbox(podman: PodmanProvider) -> OpenSandbox:
    """`await sandbox(workspace)` opens a sandbox on a directory; keywords go to `SandboxSpec`."""

    async def open_sandbox(workspace: Path, **choices: Any) -> Sandbox:
        choices.setdefault("session_id", f"session-{uuid.uuid4().hex[:8]}")
        return await podman.open(SandboxSpec(instance_id=podman.instance_id, workspace_path=str(workspace), **choices))

    return open_sandbox
