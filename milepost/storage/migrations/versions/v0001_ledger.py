"""The ledger: streams and events, Sessions and turns, effects, outbox, deltas, leases, workers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Compared by code point on both databases.
TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()
RUNNING = sa.text("state = 'running'")
OPEN = sa.text("delivered_at IS NULL AND dropped_at IS NULL")


def upgrade() -> None:
    _streams()
    _sessions()
    _turns()
    _effects()
    _queues()
    if op.get_bind().dialect.name == "postgresql":
        _postgresql_triggers()
    else:
        _sqlite_triggers()


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def _streams() -> None:
    op.create_table(
        "ledger_meta",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        _required("instance_id", TEXT),
        _required("created_at", BIG),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_meta"),
        sa.CheckConstraint("id = 1", name=op.f("ck_ledger_meta_single_row")),
    )
    op.create_table(
        "streams",
        _required("stream_id", TEXT),
        _required("kind", TEXT),
        _required("head_seq", BIG),
        _required("head_hash", BYTES),
        sa.PrimaryKeyConstraint("stream_id", name="pk_streams"),
        sa.CheckConstraint("kind IN ('session', 'run', 'attempt', 'instance')", name=op.f("ck_streams_kind")),
    )
    op.create_table(
        "events",
        _required("stream_id", TEXT),
        sa.Column("seq", BIG, autoincrement=False, nullable=False),
        _required("event_key", TEXT),
        _required("type", TEXT),
        _required("version", sa.Integer()),
        _required("at", BIG),
        sa.Column("turn_id", TEXT),
        _required("payload", BYTES),
        _required("prev_hash", BYTES),
        _required("hash", BYTES),
        sa.PrimaryKeyConstraint("stream_id", "seq", name="pk_events"),
        sa.UniqueConstraint("stream_id", "event_key", name="uq_events_stream_id_event_key"),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.stream_id"], name="fk_events_stream_id"),
        sa.CheckConstraint("seq > 0", name=op.f("ck_events_seq")),
    )
    op.create_index("ix_events_turn_id_seq", "events", ["turn_id", "seq"])


def _sessions() -> None:
    op.create_table(
        "workspaces",
        _required("workspace_id", TEXT),
        _required("path", BYTES),
        _required("path_digest", TEXT),
        _required("created_at", BIG),
        sa.PrimaryKeyConstraint("workspace_id", name="pk_workspaces"),
        sa.UniqueConstraint("path_digest", name="uq_workspaces_path_digest"),
    )
    op.create_table(
        "sessions",
        _required("session_id", TEXT),
        _required("workspace_id", TEXT),
        _required("title", BYTES),
        _required("mode", TEXT),
        _required("status", TEXT),
        _required("agents", BYTES),
        sa.Column("image", BYTES),
        _required("created_at", BIG),
        sa.Column("closed_at", BIG),
        sa.PrimaryKeyConstraint("session_id", name="pk_sessions"),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.workspace_id"], name="fk_sessions_workspace_id"),
        sa.CheckConstraint("mode IN ('single', 'multi', 'coordinator')", name=op.f("ck_sessions_mode")),
        sa.CheckConstraint("status IN ('active', 'closed')", name=op.f("ck_sessions_status")),
    )
    op.create_index("ix_sessions_created_at_session_id", "sessions", ["created_at", "session_id"])
    op.create_index("ix_sessions_workspace_id", "sessions", ["workspace_id"])


def _turns() -> None:
    op.create_table(
        "turns",
        _required("turn_id", TEXT),
        _required("session_id", TEXT),
        _required("number", sa.Integer()),
        _required("state", TEXT),
        _required("request", BYTES),
        _required("content_digest", TEXT),
        sa.Column("idempotency_key", BYTES),
        _required("workflow_id", TEXT),
        sa.Column("claimed_run", TEXT),
        _required("generation", sa.Integer()),
        _required("created_at", BIG),
        sa.Column("dispatched_at", BIG),
        sa.Column("stop_requested_at", BIG),
        sa.Column("ended_at", BIG),
        sa.Column("error_code", TEXT),
        sa.Column("error_message", BYTES),
        _required("usage", BYTES),
        _required("superseded", sa.Boolean()),
        sa.PrimaryKeyConstraint("turn_id", name="pk_turns"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_turns_session_id"),
        sa.UniqueConstraint("session_id", "number", name="uq_turns_session_id_number"),
        sa.UniqueConstraint("session_id", "idempotency_key", name="uq_turns_session_id_idempotency_key"),
        sa.CheckConstraint(
            "state IN ('running', 'completed', 'failed', 'stopped', 'interrupted')", name=op.f("ck_turns_state")
        ),
        sa.CheckConstraint("(state = 'running') = (ended_at IS NULL)", name=op.f("ck_turns_ended")),
    )
    op.create_index(
        "ix_turns_one_running",
        "turns",
        ["session_id"],
        unique=True,
        sqlite_where=RUNNING,
        postgresql_where=RUNNING,
    )
    op.create_index("ix_turns_running", "turns", ["turn_id"], sqlite_where=RUNNING, postgresql_where=RUNNING)


def _effects() -> None:
    op.create_table(
        "effects",
        _required("effect_id", TEXT),
        _required("idempotency_key", TEXT),
        _required("session_id", TEXT),
        _required("turn_id", TEXT),
        _required("generation", sa.Integer()),
        _required("agent", BYTES),
        _required("position", TEXT),
        _required("operation", BYTES),
        _required("effect_class", TEXT),
        _required("input_digest", TEXT),
        sa.Column("call_id", BYTES),
        sa.Column("arguments", BYTES),
        _required("state", TEXT),
        _required("attempt", sa.Integer()),
        _required("created_at", BIG),
        sa.Column("dispatched_at", BIG),
        sa.Column("finished_at", BIG),
        sa.Column("worker", BYTES),
        sa.Column("result", BYTES),
        sa.Column("error_code", TEXT),
        sa.Column("error_message", BYTES),
        sa.PrimaryKeyConstraint("effect_id", name="pk_effects"),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"], name="fk_effects_turn_id"),
        sa.CheckConstraint(
            "state IN ('planned', 'awaiting_approval', 'dispatched', 'succeeded', 'failed', 'uncertain', 'cancelled',"
            " 'denied')",
            name=op.f("ck_effects_state"),
        ),
        sa.CheckConstraint(
            "effect_class IN ('pure', 'observe', 'idempotent', 'keyed', 'model', 'attachable', 'internal_state',"
            " 'at_most_once')",
            name=op.f("ck_effects_effect_class"),
        ),
    )
    op.create_index("ix_effects_turn_id_created_at", "effects", ["turn_id", "created_at"])
    op.create_index("ix_effects_session_id_created_at", "effects", ["session_id", "created_at"])


def _queues() -> None:
    op.create_table(
        "outbox",
        _required("item_id", TEXT),
        _required("kind", TEXT),
        _required("subject", TEXT),
        _required("created_at", BIG),
        _required("due_at", BIG),
        _required("attempts", sa.Integer()),
        sa.Column("last_error", BYTES),
        sa.Column("leased_by", BYTES),
        sa.Column("leased_until", BIG),
        sa.Column("delivered_at", BIG),
        sa.Column("dropped_at", BIG),
        sa.PrimaryKeyConstraint("item_id", name="pk_outbox"),
        sa.UniqueConstraint("kind", "subject", name="uq_outbox_kind_subject"),
        sa.CheckConstraint("kind IN ('start_turn', 'cancel_turn')", name=op.f("ck_outbox_kind")),
    )
    op.create_index("ix_outbox_open", "outbox", ["due_at"], sqlite_where=OPEN, postgresql_where=OPEN)
    op.create_index("ix_outbox_subject", "outbox", ["subject"])
    op.create_table(
        "deltas",
        sa.Column("position", BIG.with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        _required("session_id", TEXT),
        _required("turn_id", TEXT),
        _required("agent", BYTES),
        _required("effect_id", TEXT),
        _required("attempt", sa.Integer()),
        _required("channel", TEXT),
        _required("offset", BIG),
        _required("text", BYTES),
        _required("at", BIG),
        sa.PrimaryKeyConstraint("position", name="pk_deltas"),
        sa.UniqueConstraint(
            "effect_id", "attempt", "channel", "offset", name="uq_deltas_effect_id_attempt_channel_offset"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_deltas_turn_id_position", "deltas", ["turn_id", "position"])
    op.create_table(
        "leases",
        _required("name", TEXT),
        _required("owner", BYTES),
        _required("expires_at", BIG),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "workers",
        _required("worker", BYTES),
        _required("host", BYTES),
        _required("queues", BYTES),
        _required("at", BIG),
        sa.PrimaryKeyConstraint("worker", name="pk_workers"),
    )


_ONCE = ("state", "ended_at", "usage", "error_code", "error_message")
_EVENTS_MESSAGE = "events are append-only"
_TURNS_MESSAGE = "a turn has one terminal state, written once"


def _sqlite_triggers() -> None:
    for action in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER events_no_{action.lower()} BEFORE {action} ON events"
            f" BEGIN SELECT RAISE(ABORT, '{_EVENTS_MESSAGE}'); END"
        )
    changed = " OR ".join(f"NEW.{column} IS NOT OLD.{column}" for column in _ONCE)
    op.execute(
        f"CREATE TRIGGER turns_terminal_once BEFORE UPDATE ON turns WHEN OLD.state <> 'running' AND ({changed})"
        f" BEGIN SELECT RAISE(ABORT, '{_TURNS_MESSAGE}'); END"
    )


def _postgresql_triggers() -> None:
    op.execute(
        "CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation'; END $$"
    )
    for action, level in (("UPDATE", "ROW"), ("DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
        op.execute(
            f"CREATE TRIGGER events_no_{action.lower()} BEFORE {action} ON events FOR EACH {level}"
            f" EXECUTE FUNCTION ledger_refuse('{_EVENTS_MESSAGE}')"
        )
    changed = " OR ".join(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in _ONCE)
    op.execute(
        "CREATE TRIGGER turns_terminal_once BEFORE UPDATE ON turns FOR EACH ROW"
        f" WHEN (OLD.state <> 'running' AND ({changed})) EXECUTE FUNCTION ledger_refuse('{_TURNS_MESSAGE}')"
    )
