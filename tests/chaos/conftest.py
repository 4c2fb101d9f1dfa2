"""All runs at once: they spend most of their time waiting for Temporal to notice a death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
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


Outcome = Evidence | BaseException
"""What a run left behind, or what it ended with."""


class Ledgers:
    """Makes fresh ledgers of one of the two databases."""

    def __init__(self, database: str, request: pytest.FixtureRequest) -> None:
        self._made: list[str] = []
        self._server: PostgresServer | None = None
        if database == "sqlite":
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
        """Remove what was made outside of the folders."""
        for name in self._made:
            if self._server is not None:
                self._server.drop_database(name)


@dataclass
class Stage:
    """What the worlds of one database are made from."""

    folder: Path
    ledgers: Ledgers
    podman_root: Path
    client: Client
    acting: asyncio.Semaphore

    @asynccontextmanager
    async def world(self, name: str, *, gate: bool) -> AsyncIterator[World]:
        folder = self.folder / name
        folder.mkdir()
        async with world(folder, self.ledgers.new(folder), self.podman_root, self.client, gate=gate) as made:
            yield made

    async def reference(self) -> Evidence:
        """The undisturbed run."""
        async with self.world("undisturbed", gate=True) as made:
            return await undisturbed(made, self.acting)

    async def scenario(self, number: int, scenario: Scenario) -> Evidence:
        """The run of a scenario."""
        async with self.world(str(number), gate=not scenario.outlives) as made:
            return await killed(scenario, made, self.acting)

    async def play(self, scenarios: Sequence[Scenario]) -> dict[Scenario | None, Outcome]:
        """All scenarios, and the undisturbed run under None."""
        plays = [self.scenario(number, scenario) for number, scenario in enumerate(scenarios)]
        outcomes = await asyncio.gather(*plays, self.reference(), return_exceptions=True)
        return dict(zip([*scenarios, None], outcomes, strict=True))


@dataclass
class Runs:
    """The runs on all databases."""

    outcomes: dict[str, dict[Scenario | None, Outcome]]

    def of(self, database: str, scenario: Scenario | None = None) -> Evidence:
        """What the scenario left behind, or without one the undisturbed run. Raises what the run raised."""
        outcome = self.outcomes[database][scenario]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runs(
    request: pytest.FixtureRequest,
    podman_root: Path,
    temporal_address: TemporalAddress,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Runs]:
    """All scenarios that the selected tests of this module ask for, on their databases, and the undisturbed runs."""
    client, acting = await connect(temporal_address), asyncio.Semaphore(ACTING)
    stages: dict[str, Stage] = {}
    outcomes: dict[str, dict[Scenario | None, Outcome]] = {}
    wanted = _wanted(request)
    for database, scenarios in wanted.items():
        try:
            ledgers = Ledgers(database, request)
        except (pytest.skip.Exception, pytest.fail.Exception) as missing:
            outcomes[database] = dict.fromkeys([*scenarios, None], missing)
            continue
        stages[database] = Stage(tmp_path_factory.mktemp(database), ledgers, podman_root, client, acting)
    async with asyncio.timeout(ALL_SECONDS):
        played = await asyncio.gather(*(stage.play(wanted[database]) for database, stage in stages.items()))
    yield Runs(outcomes | dict(zip(stages, played, strict=True)))
    for stage in stages.values():
        stage.ledgers.drop()


def _wanted(request: pytest.FixtureRequest) -> dict[str, list[Scenario]]:
    wanted: dict[str, list[Scenario]] = {}
    for item in request.session.items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        database, scenario = params.get("database"), params.get("scenario")
        if item.nodeid.startswith(request.node.nodeid) and isinstance(scenario, Scenario):
            scenarios = wanted.setdefault(str(database), [])
            if scenario not in scenarios:
                scenarios.append(scenario)
    return wanted
