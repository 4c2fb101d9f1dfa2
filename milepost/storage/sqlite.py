"""The ledger on SQLite: one writer thread that commits in groups, and a few reader threads.

One commit (one fsync) serves every body that waits at that moment. Each body of a group runs in its own savepoint, so
an error rolls back that body only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool, QueuePool

from milepost.domain.errors import MilepostError, StorageUnavailable
from milepost.ports.ledger import LedgerTx
from milepost.ports.notifier import Notifier
from milepost.storage import faults, schema
from milepost.storage.transaction import Transaction

T = TypeVar("T")
Body = Callable[[LedgerTx], Any]

MAX_GROUP: Final = 64
MAX_WAITING: Final = 1024
READERS: Final = 4
BUSY_TIMEOUT_MS: Final = 15_000
MIN_FREE_BYTES: Final = 16 * 1024 * 1024

_log = logging.getLogger(__name__)


def sqlite_engine(
    path: Path, *, begin: str | None = "BEGIN IMMEDIATE", readers: int = 0, foreign_keys: bool = True, keep: int = 0
) -> Engine:
    """An engine of write connections, of which at most `keep` are kept open, or of `readers` that refuse to write.

    `begin` is what starts a transaction; None leaves transactions to the caller. Migrations run without foreign keys,
    since rebuilding a table would otherwise delete what refers to it.
    """
    pool: dict[str, Any] = {"poolclass": NullPool}
    if readers or keep:
        pool = {"poolclass": QueuePool, "pool_size": readers or keep, "max_overflow": 0}
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000},
        **pool,
    )
    pragmas = [
        "journal_mode = WAL",
        "synchronous = FULL",
        f"foreign_keys = {'ON' if foreign_keys else 'OFF'}",
        "recursive_triggers = ON",  # else REPLACE deletes rows without asking the triggers
        f"query_only = {'ON' if readers else 'OFF'}",
    ]

    def connect(driver: Any, _record: Any) -> None:
        driver.isolation_level = None  # the driver's own transaction handling would begin too late
        for pragma in pragmas:
            driver.execute(f"PRAGMA {pragma}")

    def begun(conn: Connection) -> None:
        conn.connection.driver_connection.execute(begin)  # type: ignore[union-attr]

    event.listen(engine, "connect", connect)
    if begin is not None:
        event.listen(engine, "begin", begun)
    return engine


class _Job:
    """A body that waits for its commit. `future` belongs to the event loop."""

    __slots__ = ("body", "error", "future", "topics", "value")

    def __init__(self, body: Body, future: asyncio.Future[Any]) -> None:
        self.body = body
        self.future = future
        self.value: Any = None
        self.error: BaseException | None = None
        self.topics: set[str] = set()

    def run(self, conn: Connection) -> None:
        tx = Transaction(conn)
        self.value = _awaitable(lambda: self.body(tx))
        self.topics = tx.topics


def _awaitable(work: Callable[[], T]) -> T:
    """Run `work`; a StopIteration, which no future can hold, becomes what a coroutine would make of it."""
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("a ledger transaction raised StopIteration") from error


class _Writer(threading.Thread):
    """Owns the one write connection."""

    def __init__(self, path: Path, done: Callable[[list[_Job]], None]) -> None:
        super().__init__(name="ledger-writer", daemon=True)
        self._path = path
        self._engine = sqlite_engine(path, begin=None)
        self._done = done
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._conn: Connection | None = None

    def submit(self, job: _Job | None) -> None:
        """Queue a job; None ends the thread after the jobs before it."""
        self._queue.put(job)

    def run(self) -> None:
        ending = False
        while not ending:
            group, ending = self._take()
            try:
                self._commit(group)
            except BaseException as error:  # the thread must outlive every fault
                self._fail(group, error)
            self._done(group)
        self._disconnect()

    def _take(self) -> tuple[list[_Job], bool]:
        """The jobs that wait now, and whether to end after them."""
        group: list[_Job] = []
        job = self._queue.get()
        while job is not None:
            group.append(job)
            if len(group) >= MAX_GROUP or self._queue.empty():
                return group, False
            job = self._queue.get_nowait()
        return group, True

    def _commit(self, group: list[_Job]) -> None:
        jobs = [job for job in group if not job.future.cancelled()]  # nobody waits for those, and they have not begun
        if not jobs:
            return
        if self._conn is None:
            self._conn = self._engine.connect()
        driver: Any = self._conn.connection.driver_connection
        driver.execute("BEGIN IMMEDIATE")
        if len(jobs) == 1:
            self._run(self._conn, jobs[0])
            driver.execute("ROLLBACK" if jobs[0].error else "COMMIT")
            return
        for job in jobs:
            driver.execute("SAVEPOINT body")
            self._run(self._conn, job)
            if job.error:
                driver.execute("ROLLBACK TO body")
            driver.execute("RELEASE body")
        driver.execute("COMMIT")

    def _run(self, conn: Connection, job: _Job) -> None:
        """Run a body; its error is its own unless it took the transaction with it."""
        try:
            job.run(conn)
        except BaseException as error:
            driver: Any = conn.connection.driver_connection
            if faults.sqlite_code(error) in faults.FATAL_SQLITE or not driver.in_transaction:
                raise
            job.error = error

    def _fail(self, group: list[_Job], error: BaseException) -> None:
        """Nothing of the group was committed: every body gets the reason, and the connection is made anew."""
        if faults.sqlite_code(error) not in faults.FATAL_SQLITE:
            _log.error("a group of %d ledger transactions could not commit", len(group), exc_info=error)
        for job in group:
            if job.error is None:
                job.error = faults.sqlite_fault(error, str(self._path)) or StorageUnavailable(
                    f"The ledger {self._path} could not commit ({type(error).__name__}).", fix="Repeat; see the log."
                )
                job.error.__cause__ = error
        self._disconnect()

    def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(Exception):
                conn.close()


class SqliteLedger:
    """`ports.ledger.Ledger` on one SQLite file. Made by `open_ledger`; belongs to the event loop that made it."""

    def __init__(self, path: Path, notifier: Notifier, instance_id: str) -> None:
        self.instance_id = instance_id
        self._path = path
        self._notifier = notifier
        self._loop = asyncio.get_running_loop()
        self._waiting = asyncio.Semaphore(MAX_WAITING)
        self._reading = asyncio.Semaphore(READERS)
        self._readers = sqlite_engine(path, begin="BEGIN", readers=READERS)
        self._read_threads = ThreadPoolExecutor(READERS, thread_name_prefix="ledger-reader")
        self._writer = _Writer(path, self._finished)
        self._writer.start()
        self._closed = False

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        await self._enter(self._waiting)
        future: asyncio.Future[T] = self._loop.create_future()
        self._writer.submit(_Job(body, future))
        return await future

    def _finished(self, group: list[_Job]) -> None:
        """Called by the writer after the commit: publish, then wake those who wait."""
        topics = frozenset[str]().union(*(job.topics for job in group if job.error is None))
        if topics:
            try:
                self._notifier.publish(topics)
            except Exception:  # what is committed must reach who waits for it, whatever a notifier does
                _log.exception("a wake-up was lost")
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._resolve, group)

    def _resolve(self, group: list[_Job]) -> None:
        for job in group:
            self._waiting.release()
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.value)
            else:
                job.future.set_exception(job.error)

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        return await self._on_reader(lambda conn: body(Transaction(conn)))

    async def _on_reader(self, work: Callable[[Connection], T]) -> T:
        await self._enter(self._reading)
        running = self._read_threads.submit(self._read, work)
        running.add_done_callback(self._read_done)
        return await asyncio.wrap_future(running)

    def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._readers.begin() as conn:
                return _awaitable(lambda: work(conn))
        except Exception as error:
            if faults.sqlite_code(error) == faults.SQLITE_READONLY:
                raise MilepostError("A read transaction tried to write.") from error
            fault = faults.sqlite_fault(error, str(self._path))
            if fault is None:
                raise
            raise fault from error

    def _read_done(self, _running: Future[Any]) -> None:
        # After a cancelled wait the thread still works: its place is free only now.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._reading.release)

    async def _enter(self, places: asyncio.Semaphore) -> None:
        await places.acquire()
        if self._closed:
            places.release()
            raise StorageUnavailable(f"The ledger {self._path} is closed.", fix="Open it again.")

    async def check(self) -> None:
        await self._on_reader(schema.verify)
        await self.write(lambda _tx: None)  # takes the write lock: read-only files and stuck writers show here
        free = await asyncio.to_thread(shutil.disk_usage, self._path.parent)
        if free.free < MIN_FREE_BYTES:
            raise StorageUnavailable(
                f"Only {free.free} bytes are free beside the ledger {self._path}.", fix="Free disk space."
            )

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._writer.submit(None)
        await asyncio.to_thread(self._stop_threads)

    def _stop_threads(self) -> None:
        self._writer.join()
        self._read_threads.shutdown(wait=True)
        self._readers.dispose()
