"""Core blocks and daily logs as rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, and_, bindparam, delete, func, select, tuple_

from milepost.domain.errors import BlockConflict
from milepost.domain.memory import MAX_BLOCK_VERSIONS, BlockVersion, DailyEntry, Scope
from milepost.storage.columns import Identifier
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import memory_blocks, memory_entries

DAY_US = 86_400_000_000

_VERSION = [column for column in memory_blocks.c if column.name not in ("scope", "label", "owner")]
_VERSIONS = (
    select(memory_blocks.c.label, *_VERSION)
    .where(memory_blocks.c.scope == bindparam("of"))
    .order_by(memory_blocks.c.label, memory_blocks.c.number)
)
_KNOWN = select(*_VERSION).where(
    memory_blocks.c.scope == bindparam("of"),
    memory_blocks.c.label == bindparam("on"),
    memory_blocks.c.key == bindparam("k"),
)
_NEWEST = select(func.max(memory_blocks.c.number)).where(
    memory_blocks.c.scope == bindparam("of"), memory_blocks.c.label == bindparam("on")
)
_ADD_VERSION = insert_ignore(memory_blocks)
_DROP_OLD = delete(memory_blocks).where(
    memory_blocks.c.scope == bindparam("of"),
    memory_blocks.c.label == bindparam("on"),
    memory_blocks.c.number <= bindparam("until"),
)
_DROP_BLOCKS = delete(memory_blocks).where(memory_blocks.c.scope == bindparam("of"))
_ENTRY = [column for column in memory_entries.c if column.name not in ("scope", "owner")]
_ADD_ENTRY = insert_ignore(memory_entries)
_IN_RANGE = and_(
    memory_entries.c.scope == bindparam("of"),
    memory_entries.c.at >= bindparam("start"),
    memory_entries.c.at < bindparam("end"),
)
_PAGE = (
    select(*_ENTRY)
    .where(_IN_RANGE)
    .order_by(memory_entries.c.at, memory_entries.c.id)
    .limit(bindparam("page", type_=BigInteger))
)
_PAGE_AFTER = _PAGE.where(
    tuple_(memory_entries.c.at, memory_entries.c.id)
    > tuple_(bindparam("after_at", type_=BigInteger), bindparam("after_id", type_=Identifier))
)
_DAYS = select(memory_entries.c.day).where(memory_entries.c.scope == bindparam("of")).distinct()
_DROP_ENTRIES = delete(memory_entries).where(memory_entries.c.scope == bindparam("of"))


class SqlMemory:
    """`ports.memory_rows.MemoryRows`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def versions(self, scope: Scope) -> dict[str, tuple[BlockVersion, ...]]:
        found: dict[str, list[BlockVersion]] = {}
        for row in self._conn.execute(_VERSIONS, {"of": scope.component}):
            found.setdefault(row.label, []).append(_version(row))
        return {label: tuple(versions) for label, versions in found.items()}

    def write_version(self, scope: Scope, label: str, version: BlockVersion) -> BlockVersion:
        where = {"of": scope.component, "on": label}
        known = self._conn.execute(_KNOWN, {**where, "k": version.key}).first()
        if known is not None:
            return _version(known)
        newest = self._conn.execute(_NEWEST, where).scalar() or 0
        if version.number == newest + 1:
            values = {name.name: getattr(version, name.name) for name in _VERSION}
            row = {"scope": scope.component, "owner": scope.key, "label": label, **values}
            # Another transaction may have added the number since: one of the two is to try again.
            if self._conn.execute(_ADD_VERSION.on(self._conn), row).rowcount:
                self._conn.execute(_DROP_OLD, {**where, "until": version.number - MAX_BLOCK_VERSIONS})
                return version
        raise BlockConflict(f"The block '{label}' was written meanwhile.", fix="Read it and try again.")

    def drop_blocks(self, scope: Scope) -> None:
        self._conn.execute(_DROP_BLOCKS, {"of": scope.component})

    def append_entries(self, scope: Scope, entries: Sequence[DailyEntry]) -> None:
        for entry in entries:
            values = {column.name: getattr(entry, column.name) for column in _ENTRY if column.name != "day"}
            row = {"scope": scope.component, "owner": scope.key, "day": _day(entry.at), **values}
            self._conn.execute(_ADD_ENTRY.on(self._conn), row)

    def entries(
        self, scope: Scope, start: int, end: int, limit: int, after: tuple[int, str] | None
    ) -> list[DailyEntry]:
        params: dict[str, Any] = {"of": scope.component, "start": start, "end": end, "page": limit}
        if after is None:
            rows = self._conn.execute(_PAGE, params)
        else:
            rows = self._conn.execute(_PAGE_AFTER, {**params, "after_at": after[0], "after_id": after[1]})
        return [_entry(row) for row in rows]

    def days(self, scope: Scope) -> list[str]:
        return sorted(_date(day) for day in self._conn.execute(_DAYS, {"of": scope.component}).scalars())

    def drop_entries(self, scope: Scope) -> None:
        self._conn.execute(_DROP_ENTRIES, {"of": scope.component})


def _day(at: int) -> int:
    return at // DAY_US


def _date(day: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()


def _version(row: Row[Any]) -> BlockVersion:
    return BlockVersion(**{column.name: getattr(row, column.name) for column in _VERSION})


def _entry(row: Row[Any]) -> DailyEntry:
    return DailyEntry(**{column.name: getattr(row, column.name) for column in _ENTRY if column.name != "day"})
