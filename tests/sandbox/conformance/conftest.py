"""One of each back end for the whole run: a new container for each test would take minutes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.sandbox.boxes import require_namespaces
from tests.sandbox.conformance.backends import (
    CLAIMS,
    Backend,
    Box,
    E2BBackend,
    LocalBackend,
    MemoryBackend,
    PodmanBackend,
)
from tests.support.e2b import e2b_double

MARKS = {"podman": [pytest.mark.podman]}
SLOW = {("e2b", "test_files")}
"""Back ends and modules whose tests are among the slow ones: files are the supervisor's work, which the other back ends
show in every run."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `backend` or `box` runs on each back end that claims what it needs."""
    chosen = any("backend" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "backend" not in metafunc.fixturenames or chosen:
        return
    needed = {each for mark in metafunc.definition.iter_markers("needs") for each in mark.args}
    module = metafunc.module.__name__.rpartition(".")[2]
    marks = {name: [*MARKS.get(name, []), *([pytest.mark.slow] if (name, module) in SLOW else [])] for name in CLAIMS}
    able = [pytest.param(name, marks=marks[name]) for name, claims in CLAIMS.items() if needed <= claims]
    assert able, f"no back end can run {metafunc.definition.nodeid}"
    metafunc.parametrize("backend", able, indirect=True)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def local_backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalBackend]:
    require_namespaces()
    made = LocalBackend(tmp_path_factory.mktemp("local") / "workspace")
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def podman_backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[PodmanBackend]:
    made = PodmanBackend(request.getfixturevalue("podman_root"), tmp_path_factory.mktemp("podman") / "workspace")
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def e2b_backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[E2BBackend]:
    async with e2b_double(user=0) as double:
        made = E2BBackend(double, tmp_path_factory.mktemp("e2b") / "workspace")
        yield made
        await made.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def memory_backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MemoryBackend]:
    yield MemoryBackend(tmp_path_factory.mktemp("memory"))


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    found: Backend = request.getfixturevalue(f"{request.param}_backend")
    return found


@pytest_asyncio.fixture(loop_scope="session")
async def box(backend: Backend) -> Box:
    """The sandbox that tests of a back end share, with an empty Workspace."""
    return await backend.box()
