"""Leases and states of Workspaces, and file operations to be carried out."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()
PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    _states()
    op.create_table(
        "workspace_waits",
        _required("holder", TEXT),
        _required("workspace_id", TEXT),
        _required("until", BIG),
        sa.PrimaryKeyConstraint("holder", name="pk_workspace_waits"),
    )
    _restores()


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def _states() -> None:
    op.create_table(
        "workspace_states",
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
        sa.CheckConstraint(
            "purpose IS NULL OR purpose IN ('turn', 'rewind', 'fork', 'repair')",
            name=op.f("ck_workspace_states_purpose"),
        ),
        sa.CheckConstraint("(holder IS NULL) = (purpose IS NULL)", name=op.f("ck_workspace_states_held")),
    )
    op.create_index("ix_workspace_states_holder", "workspace_states", ["holder"])


def _restores() -> None:
    op.create_table(
        "workspace_restores",
        _required("restore_id", TEXT),
        _required("kind", TEXT),
        _required("session_id", TEXT),
        _required("workspace_id", TEXT),
        _required("source_id", TEXT),
        sa.Column("present", TEXT),
        _required("target", TEXT),
        _required("state", TEXT),
        _required("created_at", BIG),
        sa.Column("ended_at", BIG),
        sa.Column("error", BYTES),
        sa.PrimaryKeyConstraint("restore_id", name="pk_workspace_restores"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_workspace_restores_session_id"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.workspace_id"], name="fk_workspace_restores_workspace_id"
        ),
        sa.CheckConstraint("kind IN ('rewind', 'fork')", name=op.f("ck_workspace_restores_kind")),
        sa.CheckConstraint("state IN ('pending', 'done', 'failed')", name=op.f("ck_workspace_restores_state")),
    )
    op.create_index(
        "ix_workspace_restores_pending",
        "workspace_restores",
        ["workspace_id"],
        sqlite_where=PENDING,
        postgresql_where=PENDING,
    )
