"""The ledger on PostgreSQL: the same bodies, each in its own transaction on a pooled connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import asyncpg
from sqlalchemy import Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from milepost.domain.errors import CommitUnknown, MilepostError, StorageUnavailable
from milepost.ports.ledger import LedgerTx
from milepost.ports.notifier import Notifier
from milepost.storage import faults, schema
from milepost.storage.transaction import Transaction

T = TypeVar("T")

POOL_SIZE: Final = 16
POOL_WAIT_SECONDS: Final = 10.0
CHECK_IDLE_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 60.0
MAX_TRIES: Final = 4
_READ_ONLY_STATE: Final = "25006"


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that one statement may take, and wait for a lock."""

    statement: float = 30.0
    lock: float = 10.0


DEFAULT_LIMITS: Final = Limits()
MIGRATION_LIMITS: Final = Limits(statement=3600.0, lock=600.0)


async def connect(
    dsn: str, *, application: str = "milepost", limits: Limits = DEFAULT_LIMITS
) -> asyncpg.Connection[Any]:
    """A driver connection with every time limit set, on the client and on the server."""
    return await asyncpg.connect(
        dsn,
        timeout=CONNECT_SECONDS,
        command_timeout=limits.statement + 5,
        server_settings={
            "application_name": application,
            "statement_timeout": f"{limits.statement:.0f}s",
            "lock_timeout": f"{limits.lock:.0f}s",
            "idle_in_transaction_session_timeout": f"{IDLE_SECONDS:.0f}s",
        },
    )


def postgres_engine(dsn: str, limits: Limits = DEFAULT_LIMITS) -> AsyncEngine:
    """A bounded pool. A connection that was idle for a while is checked before use.

    SQLAlchemy's own check before every use costs three round trips; it is not needed for connections in steady use,
    since a transaction whose connection proves lost runs again on a new one.
    """
    engine = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: connect(dsn, limits=limits),
        pool_size=POOL_SIZE,
        max_overflow=0,
        pool_timeout=POOL_WAIT_SECONDS,
    )

    def returned(_driver: Any, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    def taken(driver: Any, record: Any, _proxy: Any) -> None:
        now = time.monotonic()
        if now - record.info.get("idle_since", now) > CHECK_IDLE_SECONDS:
            try:
                driver.run_async(lambda conn: conn.execute("SELECT 1", timeout=CONNECT_SECONDS))
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                raise DisconnectionError from error  # the pool makes a new connection

    def failed(context: ExceptionContext) -> None:
        if faults.connection_lost(context.original_exception):
            context.is_disconnect = True  # the pool replaces every connection that is older than this moment

    event.listen(engine.sync_engine, "handle_error", failed)
    event.listen(engine.sync_engine, "checkin", returned)
    event.listen(engine.sync_engine, "checkout", taken)
    return engine


class _Lost(Exception):
    """The connection went away before COMMIT was sent, so nothing was changed."""


class PostgresLedger:
    """`ports.ledger.Ledger` on PostgreSQL. Made by `open_ledger`.

    A body may run more than once (deadlock, serialization failure, connection lost before the commit), so it must do
    nothing but database work.
    """

    def __init__(self, engine: AsyncEngine, where: str, notifier: Notifier, instance_id: str) -> None:
        self.instance_id = instance_id
        self._engine = engine
        self._snapshots = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._where = where
        self._notifier = notifier
        # Waiting for a place is no fault; waiting long for a connection is.
        self._places = asyncio.Semaphore(POOL_SIZE)
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        return await self._protected(self._engine, lambda conn: _run(conn, body))

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        return await self._protected(self._snapshots, lambda conn: (body(Transaction(conn)), frozenset()))

    async def _protected(self, engine: AsyncEngine, work: Callable[[Connection], tuple[T, frozenset[str]]]) -> T:
        """Run in a task of its own: cancelling who waits must not cut a transaction in two."""
        await self._places.acquire()
        if self._closed:
            self._places.release()
            raise StorageUnavailable(f"The ledger {self._where} is closed.", fix="Open it again.")
        task = asyncio.create_task(self._with_retries(engine, work))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._places.release()
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here too, for a waiter that was cancelled

    async def _with_retries(self, engine: AsyncEngine, work: Callable[[Connection], tuple[T, frozenset[str]]]) -> T:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                value, topics = await self._once(engine, work)
            except Exception as error:
                again = isinstance(error, _Lost) or faults.sqlstate(error) in faults.RETRY_CODES
                if again and attempt < MAX_TRIES:
                    await asyncio.sleep(random.uniform(0, 0.02 * 2**attempt))  # noqa: S311
                    continue
                translated = self._translated(error)
                if translated is error:
                    raise  # an error that is its own cause would send whoever walks the chain round for ever
                raise translated from error
            if topics:
                self._notifier.publish(topics)
            return value
        raise AssertionError("unreachable")

    async def _once(
        self, engine: AsyncEngine, work: Callable[[Connection], tuple[T, frozenset[str]]]
    ) -> tuple[T, frozenset[str]]:
        async with engine.connect() as conn:
            try:
                transaction = await conn.begin()
                result = await conn.run_sync(work)
            except Exception as error:
                if faults.connection_lost(error):
                    raise _Lost from error
                raise
            try:
                await transaction.commit()
            except Exception as error:
                raise await self._commit_error(conn, error) from error
            return result

    async def _commit_error(self, conn: AsyncConnection, error: Exception) -> Exception:
        if faults.sqlstate(error) is not None and not faults.connection_lost(error):
            return error  # the server's answer: it did not commit
        with contextlib.suppress(Exception):
            await conn.invalidate()
        return CommitUnknown(
            f"The connection to the ledger {self._where} was lost while committing.",
            fix="Repeat with the same ids: what was written already is not written twice.",
        )

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, _Lost) and error.__cause__ is not None:
            error = error.__cause__  # type: ignore[assignment]
        if faults.sqlstate(error) == _READ_ONLY_STATE:
            return MilepostError("A read transaction tried to write, or the server is a read-only standby.")
        return faults.postgres_fault(error, self._where) or error

    async def check(self) -> None:
        def look(conn: Connection) -> tuple[None, frozenset[str]]:
            schema.verify(conn)
            return None, frozenset()

        await self._protected(self._snapshots, look)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._running:
            await asyncio.wait(self._running, timeout=DEFAULT_LIMITS.statement)
        await self._engine.dispose()


def _run(conn: Connection, body: Callable[[LedgerTx], T]) -> tuple[T, frozenset[str]]:
    tx = Transaction(conn)
    value = body(tx)
    return value, frozenset(tx.topics)
