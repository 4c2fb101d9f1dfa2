"""All runs of a database at once: they spend most of their time waiting for Temporal to notice a death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio.client import Client

from milepost.temporal.client import TemporalAddress, connect
from tests.chaos.evidence import Evidence
from tests.chaos.scenarios import Scenario, World, killed, undisturbed, world
from tests.support.postgres_server import PostgresServer

ACTING = 4
"""First workers at a time, on two cores."""

ALL_SECONDS = 300.0


class Ledgers:
    """Makes fresh ledgers of one of the two databases."""

    def __init__(self, name: str, request: pytest.FixtureRequest) -> None:
        self.name = name
        self._made: list[str] = []
        self._server: PostgresServer | None = None
        if name == "sqlite":
            self._template = request.getfixturevalue("sqlite_template")
        else:
            self._server = request.getfixturevalue("postgres_server")
            self._template = request.getfixturevalue("postgres_template")

    def new(self, folder: Path) -> str:
        """The URL of a fresh ledger with the current schema."""
        if self._server is None:
            path = folder / "ledger.db"
            path.write_bytes(self._template.read_bytes())
            return f"sqlite:///{path}"
        self._made.append(self._server.create_database(self._template))
        return self._server.url(self._made[-1])

    def drop(self) -> None:
        for name in self._made:
            if self._server is not None:
                self._server.drop_database(name)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def ledgers(request: pytest.FixtureRequest) -> Iterator[Ledgers]:
    """Fresh ledgers on each of the two databases."""
    found = Ledgers(request.param, request)
    yield found
    found.drop()


@dataclass
class Runs:
    """What every run of a database left behind, or the exception it ended with."""

    reference: Evidence
    found: dict[Scenario, Evidence | BaseException]

    def of(self, scenario: Scenario) -> Evidence:
        """The scenario's evidence. Raises what the run raised."""
        found = self.found[scenario]
        if isinstance(found, BaseException):
            raise found
        return found


@dataclass
class _Stage:
    """What the worlds of one database are made from."""

    folder: Path
    ledgers: Ledgers
    podman_root: Path
    client: Client

    @asynccontextmanager
    async def world(self, name: str, *, gate: bool) -> AsyncIterator[World]:
        folder = self.folder / name
        folder.mkdir()
        async with world(folder, self.ledgers.new(folder), self.podman_root, self.client, gate=gate) as made:
            yield made

    async def play(self, scenarios: Sequence[Scenario]) -> Runs:
        acting = asyncio.Semaphore(ACTING)

        async def reference() -> Evidence:
            async with self.world("undisturbed", gate=True) as made:
                return await undisturbed(made, acting)

        async def one(number: int, scenario: Scenario) -> Evidence:
            async with self.world(str(number), gate=not scenario.outlives) as made:
                return await killed(scenario, made, acting)

        plays = [one(number, scenario) for number, scenario in enumerate(scenarios)]
        async with asyncio.timeout(ALL_SECONDS):
            first, *found = await asyncio.gather(reference(), *plays, return_exceptions=True)
        if isinstance(first, BaseException):
            raise first
        return Runs(first, dict(zip(scenarios, found, strict=True)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs(
    request: pytest.FixtureRequest,
    ledgers: Ledgers,
    podman_root: Path,
    temporal_address: TemporalAddress,
    tmp_path_factory: pytest.TempPathFactory,
) -> Runs:
    """The undisturbed run, and those of all scenarios that the selected tests of this module ask for."""
    stage = _Stage(tmp_path_factory.mktemp(ledgers.name), ledgers, podman_root, await connect(temporal_address))
    return await stage.play(_wanted(request))


def _wanted(request: pytest.FixtureRequest) -> list[Scenario]:
    wanted: list[Scenario] = []
    for item in request.session.items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        scenario = params.get("scenario")
        if item.nodeid.startswith(request.node.nodeid) and isinstance(scenario, Scenario) and scenario not in wanted:
            wanted.append(scenario)
    return wanted
