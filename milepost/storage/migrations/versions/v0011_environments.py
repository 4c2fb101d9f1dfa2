"""Environments of Sessions, their preparation in the outbox, and the Workspace's lease for it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()
OPEN = sa.text("delivered_at IS NULL AND dropped_at IS NULL")
PREPARING = sa.text("state = 'preparing'")
KINDS = "kind IN ('answer_approval', 'start_turn', 'cancel_turn', 'prepare_environment')"
PURPOSES = "purpose IS NULL OR purpose IN ('turn', 'rewind', 'fork', 'repair', 'setup')"


def upgrade() -> None:
    _environments()
    if op.get_bind().dialect.name == "postgresql":
        _check("outbox", "ck_outbox_kind", KINDS)
        _check("workspace_states", "ck_workspace_states_purpose", PURPOSES)
    else:
        # SQLite cannot change a check, so the tables are made anew with their rows.
        _sqlite_outbox()
        _sqlite_workspace_states()


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def _environments() -> None:
    op.create_table(
        "environments",
        _required("session_id", TEXT),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        _required("state", TEXT),
        _required("plan", BYTES),
        sa.Column("consent", BYTES),
        sa.Column("result", BYTES),
        _required("created_at", BIG),
        _required("changed_at", BIG),
        _required("after_number", sa.Integer()),
        sa.Column("claimed_run", TEXT),
        sa.Column("boot", TEXT),
        sa.PrimaryKeyConstraint("session_id", "generation", name="pk_environments"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_environments_session_id"),
        sa.CheckConstraint(
            "state IN ('unprepared', 'awaiting_approval', 'preparing', 'ready', 'failed')",
            name=op.f("ck_environments_state"),
        ),
        sa.CheckConstraint("generation > 0", name=op.f("ck_environments_generation")),
    )
    op.create_index(
        "ix_environments_preparing",
        "environments",
        ["created_at"],
        sqlite_where=PREPARING,
        postgresql_where=PREPARING,
    )


def _check(table: str, name: str, condition: str) -> None:
    op.drop_constraint(op.f(name), table, type_="check")
    op.create_check_constraint(op.f(name), table, condition)


def _sqlite_outbox() -> None:
    op.create_table(
        "outbox_new",
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
        sa.CheckConstraint(KINDS, name=op.f("ck_outbox_kind")),
    )
    _exchange(
        "outbox",
        "item_id, kind, subject, created_at, due_at, attempts, last_error, leased_by, leased_until, delivered_at,"
        " dropped_at",
    )
    op.create_index("ix_outbox_open", "outbox", ["due_at"], sqlite_where=OPEN)
    op.create_index("ix_outbox_subject", "outbox", ["subject"])


def _sqlite_workspace_states() -> None:
    op.create_table(
        "workspace_states_new",
        _required("workspace_id", TEXT),
        sa.Column("tree", TEXT),
        sa.Column("turn_id", TEXT),
        sa.Column("holder", TEXT),
        sa.Column("purpose", TEXT),
        sa.Column("session_id", TEXT),
        _required("fence", BIG),
        sa.Column("since", BIG),
        sa.Column("expires_at", BIG),
        sa.PrimaryKeyConstraint("workspace_id", name="pk_workspace_states"),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.workspace_id"], name="fk_workspace_states_workspace_id"),
        sa.CheckConstraint(PURPOSES, name=op.f("ck_workspace_states_purpose")),
        sa.CheckConstraint("(holder IS NULL) = (purpose IS NULL)", name=op.f("ck_workspace_states_held")),
    )
    _exchange("workspace_states", "workspace_id, tree, turn_id, holder, purpose, session_id, fence, since, expires_at")
    op.create_index("ix_workspace_states_holder", "workspace_states", ["holder"])


def _exchange(table: str, columns: str) -> None:
    op.execute(f"INSERT INTO {table}_new ({columns}) SELECT {columns} FROM {table}")  # noqa: S608 - constants
    op.drop_table(table)
    op.rename_table(f"{table}_new", table)
