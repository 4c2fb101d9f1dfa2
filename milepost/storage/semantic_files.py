"""Semantic memory in files: an SQLite database for each owner, which several processes of a host may use at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import TimeoutError as PoolTimeout

from milepost.domain.errors import MemoryDamaged, MemoryUnavailable
from milepost.domain.memory import Scope
from milepost.ports.semantic_records import SemanticRecords
from milepost.storage import faults
from milepost.storage.semantic import SqlSemanticRecords
from milepost.storage.semantic_tables import SEMANTIC_TABLES
from milepost.storage.sqlite import sqlite_engine
from milepost.storage.tables import metadata

T = TypeVar("T")

FILE_NAME: Final = "memory.db"
FILE_VERSION: Final = 1
MAX_OPEN: Final = 32
"""Owners whose files are kept open; the one that was used longest ago is closed for another."""
THREADS: Final = 4
READERS: Final = 2


class _File:
    """The engines of one owner's file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = sqlite_engine(path, keep=1)
        self.readers = sqlite_engine(path, begin="BEGIN", readers=READERS)
        event.listen(self.writer, "connect", _erase)
        self.users = 0

    def close(self) -> None:
        self.readers.dispose()
        self.writer.dispose()


def _erase(driver: Any, _record: Any) -> None:
    driver.execute("PRAGMA secure_delete = ON")  # what is forgotten is overwritten in the file


class FileSemanticStore:
    """`ports.semantic_records.SemanticStore` on files below `place(scope)`, a folder of the owner's own."""

    def __init__(self, place: Callable[[Scope], Path], *, max_open: int = MAX_OPEN) -> None:
        self._place = place
        self._max_open = max_open
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="semantic-store")
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, _File] = OrderedDict()
        self._closed = False

    async def write(self, scope: Scope, body: Callable[[SemanticRecords], T], *, erases: bool = False) -> T:
        return await self._run(lambda: self._write(scope, body, erases))

    async def read(self, scope: Scope, body: Callable[[SemanticRecords], T]) -> T | None:
        return await self._run(lambda: self._read(scope, body))

    async def size(self, scope: Scope) -> int:
        path = self._place(scope) / FILE_NAME
        return await self._run(lambda: sum(_size(path.with_name(path.name + suffix)) for suffix in ("", "-wal")))

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._threads.shutdown(wait=True)
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise MemoryUnavailable("Semantic memory is closed.", fix="Open it again.")
        # A cancelled wait leaves the thread its work: a transaction is never cut in two.
        return await asyncio.wrap_future(self._threads.submit(work))

    def _write(self, scope: Scope, body: Callable[[SemanticRecords], T], erases: bool) -> T:
        with self._file(scope, make=True) as file:
            assert file is not None  # noqa: S101
            with file.writer.begin() as conn:
                value = body(SqlSemanticRecords(conn, scope.component))
            if erases:
                _checkpoint(file.writer)
            return value

    def _read(self, scope: Scope, body: Callable[[SemanticRecords], T]) -> T | None:
        with self._file(scope, make=False) as file:
            if file is None:
                return None
            with file.readers.begin() as conn:
                return body(SqlSemanticRecords(conn, scope.component))

    @contextlib.contextmanager
    def _file(self, scope: Scope, *, make: bool) -> Iterator[_File | None]:
        path = self._place(scope) / FILE_NAME
        with _faults(path):
            file = self._take(path, make)
            try:
                yield file
            finally:
                if file is not None:
                    self._give_back(file)

    def _take(self, path: Path, make: bool) -> _File | None:
        with self._lock:
            file = self._open.get(path)
            if file is None:
                if not _prepare(path, make):
                    return None
                file = self._open[path] = _File(path)
            self._open.move_to_end(path)
            file.users += 1
            return file

    def _give_back(self, file: _File) -> None:
        closing: list[_File] = []
        with self._lock:
            file.users -= 1
            for path in [path for path, other in self._open.items() if other.users == 0]:
                if len(self._open) <= self._max_open:
                    break
                closing.append(self._open.pop(path))
        for old in closing:
            old.close()


def _prepare(path: Path, make: bool) -> bool:
    """Whether there is a file with this release's tables; with `make` there is one afterwards."""
    if not make and _size(path) == 0:
        return False
    for folder in reversed([path.parent, *path.parent.parents]):
        if not folder.is_dir():
            with contextlib.suppress(FileExistsError):
                folder.mkdir(0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite's companions get its mode
    engine = sqlite_engine(path)
    try:
        with engine.begin() as conn:
            _make_tables(conn, path)
    finally:
        engine.dispose()
    return True


def _make_tables(conn: Connection, path: Path) -> None:
    found = conn.exec_driver_sql("PRAGMA user_version").scalar_one()
    if found > FILE_VERSION:
        raise MemoryUnavailable(
            f"{path} was made by a later release (version {found}, this one knows {FILE_VERSION}).",
            fix="Use that release.",
        )
    if found == 0:
        metadata.create_all(conn, tables=SEMANTIC_TABLES, checkfirst=False)
        conn.exec_driver_sql(f"PRAGMA user_version = {FILE_VERSION}")


def _checkpoint(engine: Engine) -> None:
    """Move everything from the write-ahead log into the file and cut the log, as far as readers let it."""
    driver = engine.raw_connection()
    try:
        driver.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        driver.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Errors of the file as errors of memory."""
    try:
        yield
    except PoolTimeout as error:
        raise MemoryUnavailable(f"{path} is in use by too many at once.", fix="Try again.") from error
    except OSError as error:
        raise MemoryUnavailable(
            f"{path} cannot be used ({error.strerror or type(error).__name__}).",
            fix="Check its owner, its permissions and the free space of its disk.",
        ) from error
    except Exception as error:
        found = faults.sqlite_reason(error)
        if found is None:
            raise
        what, fix, damaged = found
        kind = MemoryDamaged if damaged else MemoryUnavailable
        raise kind(f"{path} cannot be used: {what}.", fix=fix) from error
