"""The ledger's tables as text, the same for both databases: read at one position, loaded into an empty database.

A part is JSON lines: first `{"table", "columns": [[name, kind], ...]}`, then one array of values for each row. Kinds
are `text`, `integer`, `real`, `boolean`, `bytes`, `packed` and `binary`; bytes are text too, read as UTF-8 where what
is no UTF-8 becomes lone surrogates (Python's `surrogateescape`), which carries every byte. `packed` are bytes that the
database keeps packed; `binary` is base64. Rows are loaded into the schema they were read
from, which is then upgraded as any ledger is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa
from alembic import command
from sqlalchemy import Connection, select, type_coerce

from milepost.domain.errors import BackupTooNew, BackupUnusable, LedgerCorrupt, TargetNotEmpty
from milepost.storage import schema
from milepost.storage.columns import Binary, Utf8
from milepost.storage.packing import Packed
from milepost.storage.tables import identifiers, ledger_meta, metadata

LEFT_OUT: Final = frozenset(
    {"deltas", "leases", "workers", "workspace_waits", "search_passages", "search_state", "search_words"}
)
"""Tables of what is only true while processes run, or can be made anew."""

PART_BYTES: Final = 4 * 1024**2
ROWS: Final = 50
_TYPES: Final[dict[str, Any]] = {
    "text": sa.Text,
    "integer": sa.BigInteger,
    "real": sa.Float,
    "boolean": sa.Boolean,
    "bytes": sa.LargeBinary,
    "packed": Packed,
    "binary": sa.LargeBinary,
}


@dataclass(slots=True)
class Position:
    """Which state of which ledger was read: the number of rows of each table says how far it had come."""

    instance_id: str
    schema: str
    rows: dict[str, int] = field(default_factory=dict)


Receive = Callable[[str, bytes], None]
"""Gets the name of a part (`{table}/{number}`) and its bytes."""


def dump(conn: Connection, receive: Receive) -> Position:
    """Read every table within the snapshot that `conn` has open; a few rows are in memory at a time."""
    schema.verify(conn)
    instance_id = conn.execute(select(ledger_meta.c.instance_id)).scalar()
    position = Position(str(instance_id or ""), schema.REVISIONS[-1])
    for number, table in enumerate(table for table in metadata.sorted_tables if table.name not in LEFT_OUT):
        position.rows[table.name] = 0
        for part, (data, rows) in enumerate(_parts(conn, table), 1):
            receive(f"{number:03}-{table.name}/{part:06}.jsonl", data)
            position.rows[table.name] += rows
    return position


def _parts(conn: Connection, table: sa.Table) -> Iterator[tuple[bytes, int]]:
    kinds = [(column.name, _kind(column.type)) for column in table.columns]
    header = json.dumps({"table": table.name, "columns": kinds}).encode("ascii") + b"\n"
    columns = [
        type_coerce(column, sa.LargeBinary()).label(column.name) if kind == "bytes" else column
        for column, (_, kind) in zip(table.columns, kinds, strict=True)
    ]
    statement = select(*columns).order_by(*table.primary_key.columns)
    lines, size, rows = [header], 0, 0
    with conn.execution_options(yield_per=ROWS).execute(statement) as found:
        for row in found:
            values = [_text(value, kind) for value, (_, kind) in zip(row, kinds, strict=True)]
            line = json.dumps(values, separators=(",", ":")).encode("ascii") + b"\n"
            lines.append(line)
            size, rows = size + len(line), rows + 1
            if size >= PART_BYTES:
                yield b"".join(lines), rows
                lines, size, rows = [header], 0, 0
    if rows:
        yield b"".join(lines), rows


def _kind(type_: sa.types.TypeEngine[Any]) -> str:
    if isinstance(type_, sa.Boolean):
        return "boolean"
    if isinstance(type_, sa.Float):
        return "real"
    if isinstance(type_, sa.Integer):
        return "integer"
    if isinstance(type_, Packed | Binary):
        return "packed" if isinstance(type_, Packed) else "binary"
    return "bytes" if isinstance(type_, sa.LargeBinary | Utf8) else "text"


def _text(value: Any, kind: str) -> Any:
    if kind == "binary" and value is not None:
        return base64.b64encode(value).decode("ascii")
    return bytes(value).decode("utf-8", "surrogateescape") if isinstance(value, bytes | memoryview) else value


def require_empty(conn: Connection) -> None:
    """Raise TargetNotEmpty unless the database has no tables at all."""
    found = sa.inspect(conn).get_table_names()
    if found:
        raise TargetNotEmpty(
            f"The database is not empty: it has the table '{found[0]}'.",
            fix="Restore into an empty database, or remove the file.",
        )


def load(
    conn: Connection, revision: str, parts: Iterable[Iterable[bytes]], upgrade: Callable[[Connection], Any]
) -> None:
    """Make the schema `revision`, fill it, and bring it to this release's with `upgrade`, in the open transaction.

    Each part is given as its lines.

    Raises:
        TargetNotEmpty: nothing was changed.
        BackupTooNew: this release does not know the schema.
        BackupUnusable: the rows are not of this form, or refer to missing ones.
    """
    from milepost.storage.upgrading import alembic_config

    if revision not in schema.REVISIONS:
        raise BackupTooNew(
            f"The backup's ledger has schema {revision[:40]}; this release knows schemas up to {schema.REVISIONS[-1]}.",
            fix="Use the release that made it, or a later one.",
        )
    require_empty(conn)
    command.upgrade(alembic_config(conn), revision)
    try:
        for part in parts:
            _load_part(conn, iter(part))
        _go_on_numbering(conn)
        upgrade(conn)
    except (ValueError, TypeError, KeyError, sa.exc.IntegrityError, sa.exc.DataError, LedgerCorrupt) as error:
        raise BackupUnusable(f"The backup's tables cannot be loaded ({type(error).__name__}).") from error


def _load_part(conn: Connection, lines: Iterator[bytes]) -> None:
    head = json.loads(next(lines, b""))
    kinds = [str(kind) for _, kind in head["columns"]]
    columns = [sa.column(str(name), _TYPES[kind]()) for name, kind in head["columns"]]
    insert = sa.table(str(head["table"]), *columns).insert()
    names = [column.name for column in columns]
    while batch := list(islice(lines, ROWS)):
        conn.execute(insert, [dict(zip(names, map(_value, json.loads(line), kinds), strict=True)) for line in batch])


def _go_on_numbering(conn: Connection) -> None:
    """Rows were loaded with their numbers; new ones get later ones. SQLite sees to that by itself."""
    if conn.dialect.name == "postgresql" and sa.inspect(conn).has_table(identifiers.name):
        last = select(sa.func.max(identifiers.c.number)).scalar_subquery()
        sequence = sa.func.pg_get_serial_sequence(identifiers.name, identifiers.c.number.name)
        conn.execute(select(sa.func.setval(sequence, sa.func.coalesce(last, 1), last.is_not(None))))


def _value(value: Any, kind: str) -> Any:
    if kind == "binary" and value is not None:
        return base64.b64decode(value, validate=True)
    return value.encode("utf-8", "surrogateescape") if kind in ("bytes", "packed") and value is not None else value
