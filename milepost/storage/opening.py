"""Opening and upgrading a ledger by URL."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import string
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from milepost.domain.errors import ConfigInvalid, InvalidInput, StorageUnavailable, TargetNotEmpty
from milepost.ports.ledger import Ledger
from milepost.ports.notifier import Notifier
from milepost.storage import faults, schema
from milepost.storage.hub import Hub
from milepost.storage.marking import mentioned
from milepost.storage.pg_notifier import PgNotifier
from milepost.storage.portable import Position, Receive, dump, load, require_empty
from milepost.storage.postgres import DEFAULT_LIMITS, MIGRATION_LIMITS, PostgresLedger, postgres_engine
from milepost.storage.schema import SchemaState, SchemaStatus
from milepost.storage.sqlite import SqliteLedger, sqlite_engine
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import ledger_meta

T = TypeVar("T")

INSTANCE_ID_LENGTH: Final = 10
_INSTANCE_ID = re.compile("[a-z0-9][a-z0-9-]{0,39}")
_ADD_META = insert_ignore(ledger_meta)
_EMPTY: Final = SchemaState(SchemaStatus.EMPTY, None)
_GET_META = select(ledger_meta.c.instance_id)


async def open_ledger(url: str, notifier: Notifier, *, instance_id: str | None = None) -> Ledger:
    """Open an upgraded ledger. The first open makes its instance id: `instance_id`, or a random one.

    Args:
        url: `sqlite:////absolute/path.db` or `postgresql://user:password@host:port/database`.
        notifier: gets the topics of committed transactions.
        instance_id: at most 40 lowercase letters, digits and hyphens.

    Raises:
        ConfigInvalid: the URL is of no known form.
        InvalidInput: the instance id has other characters, or the ledger has another one.
        StorageUnavailable: the database does not answer or cannot be written.
        SchemaOutdated: `upgrade` has to run first.
        SchemaTooNew: a later release upgraded the ledger.
    """
    if instance_id is not None and not _INSTANCE_ID.fullmatch(instance_id):
        raise InvalidInput(
            f"'{instance_id}' cannot be an instance id.",
            field="instance_id",
            fix="Use at most 40 lowercase letters, digits and hyphens.",
        )
    target = _parse(url)

    def prepare(conn: Connection) -> str:
        schema.verify(conn)
        return _instance_id(conn, instance_id)

    if target.path is not None and not await asyncio.to_thread(_exists, target.path):
        schema.require_current(_EMPTY)
    found = await _run(target, prepare)
    if target.path is not None:
        return SqliteLedger(target.path, notifier, found)
    return PostgresLedger(postgres_engine(target.dsn), target.where, notifier, found)


async def open_notifier(url: str) -> Hub | PgNotifier:
    """The notifier that reaches every process which may use the ledger at `url`; close it after the ledger."""
    target = _parse(url)
    return Hub() if target.path is not None else PgNotifier(target.dsn)


async def schema_state(url: str) -> SchemaState:
    """Which schema the database has; changes nothing. Raises StorageUnavailable or ConfigInvalid."""
    target = _parse(url)
    if target.path is not None and not await asyncio.to_thread(_exists, target.path):
        return _EMPTY
    return await _run(target, schema.read_state)


async def upgrade(url: str) -> SchemaState:
    """Make the ledger or bring it to this release's schema, in one transaction; return the new state.

    Raises:
        ConfigInvalid: the URL is of no known form.
        StorageUnavailable: the database does not answer, or the folder cannot be written.
        SchemaTooNew: a later release upgraded the ledger.
    """
    from milepost.storage.upgrading import run_migrations  # Alembic is needed here only, and is slow to import

    target = _parse(url)
    if target.path is not None:
        await asyncio.to_thread(_make_file, target.path)
    return await _run(target, run_migrations, migrating=True)


async def dump_ledger(url: str, receive: Receive) -> Position:
    """Give every row of the ledger to `receive`, all as they are at one moment, while others may go on writing.

    `receive` is called in another thread on SQLite, else in this one.

    Raises:
        ConfigInvalid, StorageUnavailable, SchemaOutdated, SchemaTooNew.
    """
    target = _parse(url)
    if target.path is not None and not await asyncio.to_thread(_exists, target.path):
        schema.require_current(_EMPTY)
    return await _run_snapshot(target, lambda conn: dump(conn, receive))


async def refuse_filled(url: str) -> None:
    """Raise TargetNotEmpty unless a ledger can be loaded here. Raises StorageUnavailable, ConfigInvalid."""
    target = _parse(url)
    if target.path is None:
        await _run(target, require_empty)
    elif await asyncio.to_thread(_exists, target.path):
        raise TargetNotEmpty(f"The ledger {target.path} exists already.", fix="Restore into an empty data root.")


async def load_ledger(url: str, revision: str, parts: Callable[[], Iterable[Iterable[bytes]]]) -> None:
    """Fill an empty database with the parts of a dump, in one transaction. See `portable.load` for what is raised."""
    from milepost.storage.upgrading import run_migrations

    target = _parse(url)
    await refuse_filled(url)
    if target.path is not None:
        await asyncio.to_thread(_make_file, target.path)
    try:
        await _run(target, lambda conn: load(conn, revision, parts(), run_migrations), migrating=True)
    except BaseException:
        if target.path is not None:
            for suffix in ("", "-wal", "-shm"):
                target.path.with_name(target.path.name + suffix).unlink(missing_ok=True)
        raise


async def referenced(url: str, candidates: set[str]) -> set[str]:
    """Which of these digests and snapshot ids the ledger mentions, anywhere, at one moment.

    Raises ConfigInvalid, StorageUnavailable, SchemaOutdated, SchemaTooNew.
    """
    return await _run_snapshot(_parse(url), lambda conn: mentioned(conn, candidates))


class _Target:
    """A parsed URL: a file, or a server with a name for messages that shows no password."""

    def __init__(self, url: URL) -> None:
        self.path = Path(url.database or "") if url.drivername == "sqlite" else None
        self.dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self.where = str(self.path) if self.path else f"{url.database} at {url.host or 'the local socket'}"


def _parse(url: str) -> _Target:
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    backend = parsed.get_backend_name() if parsed is not None else ""
    absolute = parsed is not None and Path(parsed.database or "").is_absolute()
    if parsed is None or not (backend == "postgresql" or (parsed.drivername == "sqlite" and absolute)):
        raise ConfigInvalid(
            "The database URL is of no known form.",  # not shown: it may hold a password
            field="database",
            fix="Use sqlite:////absolute/path.db or postgresql://user:password@host:5432/name.",
        )
    return _Target(parsed)


async def _run(target: _Target, work: Callable[[Connection], T], *, migrating: bool = False) -> T:
    """Run `work` in a transaction of its own, with errors as everywhere in storage."""
    if target.path is not None:
        return await asyncio.to_thread(_run_sqlite, target.path, work, not migrating)
    engine = postgres_engine(target.dsn, MIGRATION_LIMITS if migrating else DEFAULT_LIMITS)
    try:
        async with engine.begin() as conn:
            return await conn.run_sync(work)
    except Exception as error:
        fault = faults.postgres_fault(error, target.where)
        if fault is None:
            raise
        raise fault from error
    finally:
        await engine.dispose()


async def _run_snapshot(target: _Target, work: Callable[[Connection], T]) -> T:
    """Run `work` on a read-only snapshot, without the time limits of a request."""
    if target.path is not None:
        return await asyncio.to_thread(_run_sqlite_snapshot, target.path, work)
    engine = postgres_engine(target.dsn, MIGRATION_LIMITS)
    snapshots = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    try:
        async with snapshots.connect() as conn, conn.begin():
            return await conn.run_sync(work)
    except Exception as error:
        fault = faults.postgres_fault(error, target.where)
        if fault is None:
            raise
        raise fault from error
    finally:
        await engine.dispose()


def _run_sqlite_snapshot(path: Path, work: Callable[[Connection], T]) -> T:
    return _once(sqlite_engine(path, begin="BEGIN", readers=1), path, work)


def _run_sqlite(path: Path, work: Callable[[Connection], T], foreign_keys: bool) -> T:
    return _once(sqlite_engine(path, foreign_keys=foreign_keys), path, work)


def _once(engine: Engine, path: Path, work: Callable[[Connection], T]) -> T:
    """One transaction on an engine that is made for it."""
    try:
        with engine.begin() as conn:
            return work(conn)
    except Exception as error:
        fault = faults.sqlite_fault(error, str(path))
        if fault is None:
            raise
        raise fault from error
    finally:
        engine.dispose()


def _exists(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unreachable(path, error) from error


def _make_file(path: Path) -> None:
    """The file with mode 0600, which SQLite gives to its companions as well."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise _unreachable(path, error) from error


def _unreachable(path: Path, error: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        f"The ledger {path} cannot be used: {error.strerror or error}.",
        fix="Give this user a data root that can be written, and check the disk's free space.",
    )


def _instance_id(conn: Connection, wanted: str | None) -> str:
    found = conn.execute(_GET_META).scalar()
    if found is None:
        letters = string.ascii_lowercase + string.digits
        new = wanted or "".join(secrets.choice(letters) for _ in range(INSTANCE_ID_LENGTH))
        row = {"id": 1, "instance_id": new, "created_at": time.time_ns() // 1000}
        conn.execute(_ADD_META.on(conn), row)
        found = conn.execute(_GET_META).scalar_one()
    if wanted is not None and found != wanted:
        raise InvalidInput(
            f"The ledger belongs to instance '{found}', not to '{wanted}'.",
            field="instance_id",
            fix="Leave the instance id out, or use another database.",
        )
    return str(found)
