"""Ledgers on real databases: a fresh SQLite file, or a fresh database of a PostgreSQL server of this run.

`ledger` runs a test on both. `postgres_url` is an upgraded, empty database that processes started by a test can use.
Under pytest-xdist each worker has a server of its own, started when first needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from milepost.ports.ledger import Ledger
from milepost.storage import Hub, PgNotifier, open_ledger, open_notifier, upgrade
from tests.support.needs import unavailable
from tests.support.postgres_server import PostgresServer, find_binaries, memory_folder, run_apart, running_server


@dataclass(frozen=True)
class OpenLedger:
    """An open ledger with what it was made from."""

    ledger: Ledger
    notifier: Hub | PgNotifier
    url: str


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    binaries = find_binaries()
    if binaries is None:
        unavailable("PostgreSQL", "no initdb and postgres under /usr/lib/postgresql or on PATH")
    with running_server(binaries, memory_folder()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """A database with the schema and nothing else, to copy from."""
    name = postgres_server.create_database()
    run_apart(upgrade(postgres_server.url(name)))
    return name


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh database without any schema."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A fresh database with the ledger's schema."""
    name = postgres_server.create_database(postgres_template)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "ledger.db"
    run_apart(upgrade(f"sqlite:///{path}"))
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A fresh file with the ledger's schema."""
    path = tmp_path / "ledger.db"
    path.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """A fresh ledger on each of the two databases."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


async def _open(url: str) -> AsyncIterator[OpenLedger]:
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    yield OpenLedger(ledger, notifier, url)
    await ledger.close()
    await notifier.close()


@pytest.fixture
async def sqlite_ledger(sqlite_url: str) -> AsyncIterator[Ledger]:
    async for opened in _open(sqlite_url):
        yield opened.ledger


@pytest.fixture
async def postgres_ledger(postgres_url: str) -> AsyncIterator[Ledger]:
    async for opened in _open(postgres_url):
        yield opened.ledger


@pytest.fixture
async def opened(ledger_url: str) -> AsyncIterator[OpenLedger]:
    """An open ledger on each of the two databases, with its notifier and URL."""
    async for opened in _open(ledger_url):
        yield opened


@pytest.fixture
def ledger(opened: OpenLedger) -> Ledger:
    """An open ledger on each of the two databases."""
    return opened.ledger
