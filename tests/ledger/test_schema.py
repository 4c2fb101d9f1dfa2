"""The schema: made and refused by version, the same from migrations and metadata, opened by URL."""

from __future__ import annotations

import asyncio
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect
from sqlalchemy.engine import URL

from milepost.domain.errors import ConfigInvalid, InvalidInput, SchemaOutdated, SchemaTooNew, StorageUnavailable
from milepost.domain.events import RunStarted, StreamKind
from milepost.ports.ledger import NewEvent
from milepost.storage import Hub, SchemaStatus, open_ledger, schema, schema_state, upgrade
from milepost.storage.postgres import postgres_engine
from milepost.storage.tables import metadata
from milepost.storage.upgrading import alembic_config
from tests.ledger.samples import sql
from tests.support.postgres_server import run_apart

ROOT = Path(__file__).parents[2]


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/empty.db"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without anything, on each of the two."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("empty_postgres_url"))
    return f"sqlite:///{tmp_path}/data/ledger.db"


def _on(url: str, work: Any) -> Any:
    """Run `work(conn)` on a plain engine."""
    if url.startswith("sqlite"):
        engine = create_engine(url)
        with engine.begin() as conn:
            return work(conn)

    async def run() -> Any:
        other = postgres_engine(url)
        async with other.begin() as conn:
            result = await conn.run_sync(work)
        await other.dispose()
        return result

    return run_apart(run())


async def test_upgrade_makes_the_ledger_once(empty_url: str) -> None:
    before = await schema_state(empty_url)
    assert (before.status, before.found) == (SchemaStatus.EMPTY, None)
    with pytest.raises(SchemaOutdated, match="no ledger yet") as error:
        await open_ledger(empty_url, Hub())
    assert "db upgrade" in str(error.value.fix)
    for _ in range(2):
        after = await upgrade(empty_url)
        assert (after.status, after.found) == (SchemaStatus.CURRENT, schema.REVISIONS[-1])
        assert await schema_state(empty_url) == after


async def test_upgrades_at_once(empty_url: str) -> None:
    states = await asyncio.gather(*(upgrade(empty_url) for _ in range(3)))
    assert {state.status for state in states} == {SchemaStatus.CURRENT}


async def test_a_newer_schema_is_refused_and_left_alone(ledger_url: str) -> None:
    sql(ledger_url, "UPDATE ledger_schema SET version_num = '0099'")
    assert (await schema_state(ledger_url)).status is SchemaStatus.TOO_NEW
    for use in (open_ledger(ledger_url, Hub()), upgrade(ledger_url)):
        with pytest.raises(SchemaTooNew, match="0099") as error:
            await use
        assert error.value.fix
    assert sql(ledger_url, "SELECT version_num FROM ledger_schema") == [("0099",)]


async def test_an_older_schema_is_refused(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "0099"))
    assert (await schema_state(ledger_url)).status is SchemaStatus.OUTDATED
    with pytest.raises(SchemaOutdated, match=f"schema {schema.REVISIONS[-2]}") as error:
        await open_ledger(ledger_url, Hub())
    assert "db upgrade" in str(error.value.fix)


async def test_a_failed_upgrade_leaves_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = schema.read_state
    calls: list[int] = []

    def fails_at_the_end(conn: Connection) -> schema.SchemaState:
        calls.append(1)
        if len(calls) == 2:
            raise LookupError
        return real(conn)

    monkeypatch.setattr(schema, "read_state", fails_at_the_end)
    with pytest.raises(LookupError):
        await upgrade(empty_url)
    monkeypatch.undo()
    assert (await schema_state(empty_url)).status is SchemaStatus.EMPTY
    assert (await upgrade(empty_url)).status is SchemaStatus.CURRENT


async def test_the_ledger_keeps_its_rows_and_id_over_upgrades(ledger_url: str) -> None:
    first = await open_ledger(ledger_url, Hub(), instance_id="chosen-1")
    new = [NewEvent("k", RunStarted("r", "a", {}))]
    await first.write(lambda tx: tx.events.append("run_1", StreamKind.RUN, new, 1))
    await first.close()
    await upgrade(ledger_url)
    second = await open_ledger(ledger_url, Hub())
    assert (first.instance_id, second.instance_id) == ("chosen-1", "chosen-1")
    assert (await second.read(lambda tx: tx.events.head("run_1")))[0] == 1
    await second.close()
    with pytest.raises(InvalidInput, match="chosen-1"):
        await open_ledger(ledger_url, Hub(), instance_id="other")


async def test_the_first_open_makes_the_instance_id(ledger_url: str) -> None:
    ledgers = await asyncio.gather(*(open_ledger(ledger_url, Hub()) for _ in range(4)))
    assert len({ledger.instance_id for ledger in ledgers}) == 1
    assert re.fullmatch("[a-z0-9]{10}", ledgers[0].instance_id)
    for ledger in ledgers:
        await ledger.close()
    for bad in ("", "UPPER", "a/b", "a b", "x" * 41, "-a"):
        with pytest.raises(InvalidInput):
            await open_ledger(ledger_url, Hub(), instance_id=bad)


def test_the_code_names_every_migration() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert tuple(script.revision for script in reversed(list(scripts.walk_revisions()))) == schema.REVISIONS


@pytest.mark.parametrize(
    "names",
    [
        ("empty_sqlite_url", "sqlite_url"),
        pytest.param(("empty_postgres_url", "postgres_url"), marks=pytest.mark.postgres),
    ],
    ids=["sqlite", "postgresql"],
)
def test_metadata_and_migrations_agree(names: tuple[str, str], request: pytest.FixtureRequest) -> None:
    empty_url, ledger_url = (str(request.getfixturevalue(name)) for name in names)

    def differences(conn: Connection) -> list[Any]:
        options = {"compare_type": True, "compare_server_default": True}
        ignored = lambda _object, name, *_: not _own_form(name)  # noqa: E731
        context = MigrationContext.configure(conn, opts={**options, "include_object": ignored})
        return list(compare_metadata(context, metadata))

    assert _on(ledger_url, differences) == []
    _on(empty_url, metadata.create_all)
    assert _on(ledger_url, _shape) == _on(empty_url, _shape)


def _own_form(name: str | None) -> bool:
    """What is not in the metadata: Alembic's table, and what each database has in a form of its own."""
    return name == schema.VERSION_TABLE or str(name).removeprefix("ix_").startswith("search_words")


def _shape(conn: Connection) -> dict[str, Any]:
    """What Alembic's comparison leaves out as well: checks, conditions of indexes, names, collations."""
    found = inspect(conn)
    tables = sorted(name for name in found.get_table_names() if not _own_form(name))
    assert len(tables) == len(metadata.tables)
    return {
        table: {
            "columns": _plain(found.get_columns(table)),
            "primary": _plain(found.get_pk_constraint(table)),
            "unique": sorted(_plain(found.get_unique_constraints(table)), key=str),
            "foreign": sorted(_plain(found.get_foreign_keys(table)), key=str),
            "checks": sorted(_plain(found.get_check_constraints(table)), key=str),
            "indexes": sorted(_plain(found.get_indexes(table)), key=str),
        }
        for table in tables
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)


async def test_the_triggers_are_there(ledger_url: str) -> None:
    if ledger_url.startswith("sqlite"):
        query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    else:
        query = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal"
    names = {str(name) for (name,) in sql(ledger_url, query)}
    assert names >= {"events_no_update", "events_no_delete", "shared_payloads_no_update", "turns_terminal_once"}


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "sqlite://", "sqlite:///relative.db", "sqlite:///:memory:", "mysql://u:geheim@h/d", "/tmp/x.db"],
)
async def test_a_url_of_no_known_form(url: str) -> None:
    for use in (open_ledger(url, Hub()), schema_state(url), upgrade(url)):
        with pytest.raises(ConfigInvalid) as error:
            await use
        assert "geheim" not in str(error.value)
        assert error.value.field == "database"


async def test_the_files_belong_to_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "data" / "ledger.db"
    await upgrade(f"sqlite:///{path}")
    ledger = await open_ledger(f"sqlite:///{path}", Hub())
    await ledger.write(lambda tx: tx.leases.acquire("a", "b", 1, 1))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    await ledger.close()


async def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "with space ?&#%41 ü" / "ledger.db"
    url = URL.create("sqlite", database=str(path)).render_as_string()
    await upgrade(url)
    assert (await schema_state(url)).status is SchemaStatus.CURRENT


async def test_a_data_root_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageUnavailable) as error:
        await upgrade(f"sqlite:///{tmp_path}/file/ledger.db")
    assert error.value.fix
    with pytest.raises(StorageUnavailable):
        await schema_state(f"sqlite:///{tmp_path}/file/ledger.db")


@pytest.fixture
def no_database(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    path.write_text("this is not a database, but it is long enough to be taken for one" * 20)
    return path


async def test_a_file_that_is_no_database(no_database: Path) -> None:
    path = no_database
    for use in (open_ledger(f"sqlite:///{path}", Hub()), upgrade(f"sqlite:///{path}")):
        with pytest.raises(StorageUnavailable, match="not an SQLite database"):
            await use


def test_a_ledger_that_may_only_be_read(sqlite_url: str) -> None:
    """As another user, since root may write everywhere."""
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    path.chmod(0o444)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, sqlite_url], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


READ_ONLY = """
import asyncio, os, sys
from milepost.domain.errors import StorageUnavailable
from milepost.storage import Hub, open_ledger

async def main(url):
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
    try:
        await open_ledger(url, Hub())
    except StorageUnavailable as error:
        assert error.fix
    else:
        raise AssertionError("opened")

asyncio.run(main(sys.argv[1]))
"""
