"""Rows that refer to rows which do not exist. The database refuses them; a changed file or a lost table has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Connection, exists, select

from milepost.ports.ledger import Orphan
from milepost.storage import tables
from milepost.storage.tables import metadata

_Reference = tuple[Column[Any], Column[Any]]

_UNDECLARED: tuple[_Reference, ...] = (
    (tables.sessions.c.session_id, tables.streams.c.stream_id),
    (tables.effects.c.session_id, tables.sessions.c.session_id),
    (tables.approvals.c.session_id, tables.sessions.c.session_id),
    (tables.reservations.c.session_id, tables.sessions.c.session_id),
    (tables.reservations.c.turn_id, tables.turns.c.turn_id),
    (tables.deltas.c.turn_id, tables.turns.c.turn_id),
    (tables.attachments.c.used_by, tables.turns.c.turn_id),
)
"""References that are no foreign keys, so that appending does not pay for them."""


def find_orphans(conn: Connection, limit: int) -> list[Orphan]:
    """At most `limit` for each reference between tables."""
    found: list[Orphan] = []
    for child, parent in _references():
        keys = child.table.primary_key.columns
        missing = ~exists().where(parent == child)
        query = select(*keys, child.label("missing")).where(child.is_not(None), missing).order_by(*keys).limit(limit)
        for row in conn.execute(query):
            key = "/".join(str(value) for value in row[:-1])
            found.append(Orphan(child.table.name, key, child.name, str(row[-1]), parent.table.name))
    session_streams = select(tables.streams.c.stream_id).where(
        tables.streams.c.kind == "session",
        ~exists().where(tables.sessions.c.session_id == tables.streams.c.stream_id),
    )
    for (stream,) in conn.execute(session_streams.limit(limit)):
        found.append(Orphan("streams", stream, "stream_id", stream, "sessions"))
    return found + _events_without(conn, limit)


def _events_without(conn: Connection, limit: int) -> list[Orphan]:
    """Events whose stream or turn is missing: they name both by number."""
    ids, of_stream = tables.identifiers, tables.identifiers.alias("of_stream")
    named = select(of_stream.c.name, tables.events.c.seq, ids.c.name.label("missing")).join_from(
        tables.events, of_stream, of_stream.c.number == tables.events.c.stream
    )
    found: list[Orphan] = []
    for column, parent in (("stream", tables.streams.c.stream_id), ("turn", tables.turns.c.turn_id)):
        joined = named.join(ids, ids.c.number == tables.events.c[column]).where(~exists().where(parent == ids.c.name))
        for stream, seq, missing in conn.execute(joined.order_by(of_stream.c.name, tables.events.c.seq).limit(limit)):
            found.append(Orphan("events", f"{stream}/{seq}", f"{column}_id", missing, parent.table.name))
    return found


def _references() -> Iterator[_Reference]:
    for table in metadata.sorted_tables:
        for key in sorted(table.foreign_keys, key=lambda key: key.parent.name):
            yield key.parent, key.column
    yield from _UNDECLARED
