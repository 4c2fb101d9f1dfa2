"""Statements that need care: upserts, which each dialect spells its own way, and those of the append path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.base import Executable
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.schema import Table


class PerDialect:
    """An upsert built once for each dialect: `build` gets the dialect's Insert of `table`."""

    def __init__(self, table: Table, build: Callable[[Any], Executable]) -> None:
        self._statements = {
            "sqlite": build(sqlite.insert(table)),
            "postgresql": build(postgresql.insert(table)),
        }

    def on(self, conn: Connection) -> Executable:
        return self._statements[conn.dialect.name]


def insert_ignore(table: Table) -> PerDialect:
    """An insert that changes nothing, and counts no row, where any unique constraint already holds."""
    return PerDialect(table, lambda insert: insert.on_conflict_do_nothing())


class Prepared:
    """A statement compiled once; on SQLite its text goes straight to the driver.

    SQLAlchemy's own work per statement is small beside a round trip to a server, but three times SQLite's whole work,
    and appending an event is what the ledger does most. Only for columns that need no conversion: identifiers (checked
    by the caller), integers, bytes.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        assert isinstance(statement, ClauseElement)  # noqa: S101
        compiled = statement.compile(dialect=sqlite.dialect())
        self._text = str(compiled)
        self._names: Sequence[str] = getattr(compiled, "positiontup", None) or ()
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}

    def run(self, conn: Connection, params: Mapping[str, Any]) -> None:
        if conn.dialect.name == "sqlite":
            self._execute(conn, params)
        else:
            conn.execute(self._statement, params)

    def run_many(self, conn: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        if conn.dialect.name == "sqlite":
            for row in rows:
                self._execute(conn, row)
        else:
            conn.execute(self._statement, rows if len(rows) > 1 else rows[0])

    def all(self, conn: Connection, params: Mapping[str, Any]) -> Sequence[Any]:
        if conn.dialect.name == "sqlite":
            found: Sequence[Any] = self._execute(conn, params).fetchall()
            return found
        return conn.execute(self._statement, params).all()

    def _execute(self, conn: Connection, params: Mapping[str, Any]) -> Any:
        values = {**self._constants, **params}
        driver: Any = conn.connection.driver_connection
        return driver.execute(self._text, [values[name] for name in self._names])
