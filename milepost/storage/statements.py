"""Statements that the two dialects spell with different classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.base import Executable
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
