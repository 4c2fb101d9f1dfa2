"""The schema's version: what the database has beside what this release knows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection, inspect, text

from milepost.domain.errors import SchemaOutdated, SchemaTooNew

REVISIONS: Final = tuple(f"{number:04}" for number in range(1, 21))
"""Every migration of this release, in order; the last is what the code needs."""

VERSION_TABLE: Final = "ledger_schema"


class SchemaStatus(StrEnum):
    """`EMPTY`: no ledger yet. `TOO_NEW`: made by a later release."""

    EMPTY = "empty"
    OUTDATED = "outdated"
    CURRENT = "current"
    TOO_NEW = "too_new"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """`found` is the database's revision (None: none), `needed` the code's."""

    status: SchemaStatus
    found: str | None
    needed: str = REVISIONS[-1]


def read_state(conn: Connection) -> SchemaState:
    """The state of the schema behind `conn`."""
    if not inspect(conn).has_table(VERSION_TABLE):
        return SchemaState(SchemaStatus.EMPTY, None)
    found = conn.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608
    if found is None:
        return SchemaState(SchemaStatus.EMPTY, None)
    if found not in REVISIONS:
        return SchemaState(SchemaStatus.TOO_NEW, found)
    current = found == REVISIONS[-1]
    return SchemaState(SchemaStatus.CURRENT if current else SchemaStatus.OUTDATED, found)


def refuse_newer(state: SchemaState) -> None:
    """Raise SchemaTooNew if a later release made the schema."""
    if state.status is SchemaStatus.TOO_NEW:
        raise SchemaTooNew(
            f"The ledger has schema {state.found}; this release knows schemas up to {state.needed}.",
            fix="Use the release that upgraded the ledger, or a later one.",
        )


def require_current(state: SchemaState) -> None:
    """Raise SchemaTooNew or SchemaOutdated unless the schema is the one this release needs."""
    refuse_newer(state)
    if state.status is not SchemaStatus.CURRENT:
        have = "no ledger yet" if state.found is None else f"ledger schema {state.found}"
        raise SchemaOutdated(
            f"The database has {have}; this release needs schema {state.needed}.", fix="Run `milepost db upgrade`."
        )


def verify(conn: Connection) -> None:
    """Raise SchemaTooNew or SchemaOutdated unless the database behind `conn` can be used."""
    require_current(read_state(conn))
