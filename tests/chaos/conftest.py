"""Fresh ledgers by the dozen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.postgres_server import PostgresServer

NewLedger = Callable[[Path], str]
"""A folder -> the URL of a fresh, empty ledger."""


@pytest.fixture
def new_sqlite(sqlite_template: Path) -> NewLedger:
    def new(folder: Path) -> str:
        path = folder / "ledger.db"
        path.write_bytes(sqlite_template.read_bytes())
        return f"sqlite:///{path}"

    return new


@pytest.fixture
def new_postgres(postgres_server: PostgresServer, postgres_template: str) -> Iterator[NewLedger]:
    made: list[str] = []

    def new(_folder: Path) -> str:
        made.append(postgres_server.create_database(postgres_template))
        return postgres_server.url(made[-1])

    yield new
    for name in made:
        postgres_server.drop_database(name)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def new_ledger(request: pytest.FixtureRequest) -> NewLedger:
    """Fresh ledgers on each of the two databases."""
    name = "new_sqlite" if request.param == "sqlite" else "new_postgres"
    new: NewLedger = request.getfixturevalue(name)
    return new
