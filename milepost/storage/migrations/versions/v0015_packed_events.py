"""Events by numbered ids, with packed bodies; of turns that have ended no reservations and no outbox rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from milepost.storage.bodies import body, divided

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()
SERIAL = BIG.with_variant(sa.Integer(), "sqlite")
BATCH = 200
APPEND_ONLY = ("identifiers", "events", "event_pieces")
_MESSAGE = "events are append-only"
_COLUMNS = "stream, seq, key_digest, type, version, at, turn, pieces, body, hash"


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    for action in ("update", "delete") if sqlite else ("update", "delete", "truncate"):
        op.execute(f"DROP TRIGGER events_no_{action}" + ("" if sqlite else " ON events"))
    op.drop_index("ix_events_turn_id_seq", "events")
    op.rename_table("events", "old_events")
    if not sqlite:
        # Names of constraints, and of the indexes behind them, stay with the table that they were made for.
        for name in ("pk_events", "uq_events_stream_id_event_key", "fk_events_stream_id", "ck_events_seq"):
            op.execute(f"ALTER TABLE old_events RENAME CONSTRAINT {name} TO old_{name}")
    _make_tables()
    _fill(op.get_bind())
    op.drop_table("old_events")
    for table in APPEND_ONLY:
        _protect(table, sqlite)
    ended = "(SELECT turn_id FROM turns WHERE state <> 'running')"
    op.execute(f"DELETE FROM reservations WHERE state <> 'open' AND turn_id IN {ended}")  # noqa: S608
    op.execute(f"DELETE FROM outbox WHERE subject IN {ended}")  # noqa: S608


def _make_tables() -> None:
    op.create_table(
        "identifiers",
        sa.Column("number", SERIAL, autoincrement=True, nullable=False),
        _required("name", TEXT),
        sa.PrimaryKeyConstraint("number", name="pk_identifiers"),
        sa.UniqueConstraint("name", name="uq_identifiers_name"),
    )
    op.create_table(
        "events",
        _required("stream", BIG),
        sa.Column("seq", BIG, autoincrement=False, nullable=False),
        _required("key_digest", BYTES),
        _required("type", TEXT),
        _required("version", sa.Integer()),
        _required("at", BIG),
        sa.Column("turn", BIG),
        _required("pieces", sa.Integer()),
        _required("body", BYTES),
        _required("hash", BYTES),
        sa.PrimaryKeyConstraint("stream", "seq", name="pk_events"),
        sa.UniqueConstraint("stream", "key_digest", name="uq_events_stream_key_digest"),
        sa.ForeignKeyConstraint(["stream"], ["identifiers.number"], name="fk_events_stream"),
        sa.CheckConstraint("seq > 0", name=op.f("ck_events_seq")),
    )
    op.create_index("ix_events_turn_seq", "events", ["turn", "seq"])
    op.create_table(
        "event_pieces",
        sa.Column("stream", BIG, autoincrement=False, nullable=False),
        sa.Column("seq", BIG, autoincrement=False, nullable=False),
        sa.Column("part", sa.Integer(), autoincrement=False, nullable=False),
        _required("data", BYTES),
        sa.PrimaryKeyConstraint("stream", "seq", "part", name="pk_event_pieces"),
    )


def _fill(conn: sa.Connection) -> None:
    """Copy every event, a few at a time; hashes stay what they are."""
    conn.execute(sa.text("INSERT INTO identifiers (name) SELECT stream_id FROM streams ORDER BY stream_id"))
    conn.execute(
        sa.text(
            "INSERT INTO identifiers (name) SELECT DISTINCT turn_id FROM old_events WHERE turn_id IS NOT NULL"
            " AND turn_id NOT IN (SELECT stream_id FROM streams) ORDER BY turn_id"
        )
    )
    columns = ("stream_id", "seq", "event_key", "type", "version", "at", "turn_id", "payload", "hash")
    old = sa.table("old_events", *(sa.column(name) for name in columns))
    names = sa.table("identifiers", sa.column("number", BIG), sa.column("name", TEXT))
    streams, turns = names.alias("of_stream"), names.alias("of_turn")
    joined = sa.join(old, streams, streams.c.name == old.c.stream_id)
    joined = sa.join(joined, turns, turns.c.name == old.c.turn_id, isouter=True)
    statement = sa.select(old, streams.c.number.label("stream"), turns.c.number.label("turn")).select_from(joined)
    statement = statement.order_by(old.c.stream_id, old.c.seq).limit(BATCH)
    last: tuple[str, int] | None = None
    while True:
        page = statement
        if last is not None:
            page = page.where(sa.tuple_(old.c.stream_id, old.c.seq) > sa.tuple_(*map(sa.literal, last)))
        rows = conn.execute(page).all()
        if not rows:
            return
        _copy(conn, rows)
        last = (rows[-1].stream_id, rows[-1].seq)


def _copy(conn: sa.Connection, rows: Sequence[Any]) -> None:
    made: list[dict[str, Any]] = []
    pieces: list[dict[str, Any]] = []
    for row in rows:
        kept = body(row.event_key, bytes(row.payload), row.turn_id)
        place = {"stream": row.stream, "seq": row.seq}
        parts, end = divided(kept)
        pieces += [{**place, "part": part, "data": data} for part, data in enumerate(parts)]
        own = {"type": row.type, "version": row.version, "at": row.at, "turn": row.turn, "hash": bytes(row.hash)}
        digest = hashlib.sha256(row.event_key.encode()).digest()[:16]
        made.append({**place, **own, "key_digest": digest, "pieces": len(parts), "body": end})
    conn.execute(_table("events", _COLUMNS.split(", ")).insert(), made)
    if pieces:
        conn.execute(_table("event_pieces", ["stream", "seq", "part", "data"]).insert(), pieces)


def _table(name: str, columns: list[str]) -> sa.TableClause:
    types: dict[str, Any] = dict.fromkeys(("stream", "seq", "at", "turn"), BIG)
    types |= dict.fromkeys(("version", "part", "pieces"), sa.Integer())
    types |= dict.fromkeys(("key_digest", "body", "hash", "data"), BYTES)
    return sa.table(name, *(sa.column(column, types.get(column, sa.Text())) for column in columns))


def _protect(table: str, sqlite: bool) -> None:
    if sqlite:
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table}"
                f" BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
            )
        return
    for action, level in (("UPDATE", "ROW"), ("DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
        op.execute(
            f"CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} FOR EACH {level}"
            f" EXECUTE FUNCTION ledger_refuse('{_MESSAGE}')"
        )
