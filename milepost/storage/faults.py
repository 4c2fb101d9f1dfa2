"""Turning drivers' errors into `StorageUnavailable`, by code and never by text."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from milepost.domain.errors import MilepostError, StorageUnavailable

_SQLITE: Final = {
    sqlite3.SQLITE_FULL: ("the disk is full", "Free disk space, then repeat."),
    sqlite3.SQLITE_IOERR: ("reading or writing the file failed", "Check the disk and its free space, then repeat."),
    sqlite3.SQLITE_BUSY: ("another process holds its lock", "Stop the other process that writes to it, then repeat."),
    sqlite3.SQLITE_LOCKED: ("it is locked", "Repeat in a moment."),
    sqlite3.SQLITE_READONLY: ("it is read-only", "Give this user write access to the file and its folder."),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "Check that the folder exists and belongs to this user."),
    sqlite3.SQLITE_PERM: ("access is denied", "Give this user write access to the file and its folder."),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged", "Restore it from a backup."),
    sqlite3.SQLITE_NOTADB: ("the file is not an SQLite database", "Move it away, or set another data root."),
    sqlite3.SQLITE_NOMEM: ("memory ran out", "Free memory, then repeat."),
}

FATAL_SQLITE: Final = frozenset(_SQLITE)
"""Faults of the database; the transaction may be gone with them."""
SQLITE_READONLY: Final = sqlite3.SQLITE_READONLY

# Classes and single codes of https://www.postgresql.org/docs/current/errcodes-appendix.html
_POSTGRES_CLASSES: Final = ("08", "28", "3D", "53", "57", "58", "XX")
_POSTGRES_CODES: Final = frozenset({"25006", "25P03", "55P03", "40001", "40P01"})
_GOING_CODES: Final = frozenset({"57P01", "57P02", "57P03"})
RETRY_CODES: Final = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: the whole body may simply run again."""


def sqlite_code(error: BaseException) -> int | None:
    """Primary result code of an SQLite error, or of SQLAlchemy's wrapper of one."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(origin, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def sqlite_reason(error: BaseException) -> tuple[str, str, bool] | None:
    """If the database (not the statement) is at fault: what is wrong, what to do, and whether the file is damaged."""
    code = sqlite_code(error)
    if code not in _SQLITE:
        return None
    return *_SQLITE[code], code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def sqlite_fault(error: BaseException, path: str) -> StorageUnavailable | None:
    """The typed error if the database (not the statement) is at fault."""
    reason = sqlite_reason(error)
    if reason is None:
        return None
    what, fix, _ = reason
    return StorageUnavailable(f"The ledger {path} cannot be used: {what}.", fix=fix)


def sqlstate(error: BaseException) -> str | None:
    """SQLSTATE of a PostgreSQL error, or of SQLAlchemy's wrapper of one."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(origin, "sqlstate", None)
    return state if isinstance(state, str) else None


def connection_lost(error: BaseException) -> bool:
    """Whether the connection that ran the statement is gone, or the server is going."""
    state = sqlstate(error) or ""
    if state.startswith("08") or state in _GOING_CODES:
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, ConnectionError)


def postgres_fault(error: BaseException, where: str) -> StorageUnavailable | None:
    """The typed error if the server, the network or the pool (not the statement) is at fault."""
    if isinstance(error, MilepostError):
        return None
    if isinstance(error, PoolTimeout):
        return StorageUnavailable(
            f"All connections to the ledger {where} are busy.", fix="Repeat in a moment, or raise the pool size."
        )
    state = sqlstate(error)
    if state is not None and (state[:2] in _POSTGRES_CLASSES or state in _POSTGRES_CODES):
        detail = str(getattr(error, "orig", error)).splitlines()[0][:300]
        return StorageUnavailable(
            f"The ledger {where} cannot be used (SQLSTATE {state}): {detail}",
            fix="Check the PostgreSQL server and the database URL, then repeat.",
        )
    if connection_lost(error) or isinstance(error, OSError | TimeoutError):
        return StorageUnavailable(
            f"The ledger {where} does not answer ({type(error).__name__}).",
            fix="Check that the PostgreSQL server runs and can be reached, then repeat.",
        )
    return None
