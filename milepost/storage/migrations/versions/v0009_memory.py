"""Core blocks, daily logs, and work on memory."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()


def upgrade() -> None:
    op.create_table(
        "memory_tasks",
        _required("kind", TEXT),
        _required("subject", TEXT),
        _required("session_id", TEXT),
        _required("created_at", BIG),
        _required("due_at", BIG),
        _required("attempts", sa.Integer()),
        sa.Column("last_error", BYTES),
        sa.Column("leased_by", BYTES),
        sa.Column("leased_until", BIG),
        sa.PrimaryKeyConstraint("kind", "subject", name="pk_memory_tasks"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_memory_tasks_session_id"),
        sa.CheckConstraint("kind IN ('write', 'rebuild')", name=op.f("ck_memory_tasks_kind")),
    )
    op.create_index("ix_memory_tasks_due_at", "memory_tasks", ["due_at"])
    op.create_table(
        "memory_blocks",
        _required("scope", TEXT),
        _required("label", TEXT),
        _required("number", sa.Integer()),
        _required("owner", BYTES),
        _required("value", BYTES),
        _required("at", BIG),
        _required("by", BYTES),
        _required("key", TEXT),
        _required("turn_id", TEXT),
        _required("turn_number", sa.Integer()),
        _required("note", BYTES),
        sa.PrimaryKeyConstraint("scope", "label", "number", name="pk_memory_blocks"),
        sa.UniqueConstraint("scope", "label", "key", name="uq_memory_blocks_scope_label_key"),
    )
    op.create_table(
        "memory_entries",
        _required("scope", TEXT),
        _required("id", TEXT),
        _required("owner", BYTES),
        _required("at", BIG),
        _required("day", sa.Integer()),
        _required("kind", TEXT),
        _required("speaker", BYTES),
        _required("text", BYTES),
        _required("turn_id", TEXT),
        _required("turn_number", sa.Integer()),
        _required("cut", sa.Boolean()),
        sa.PrimaryKeyConstraint("scope", "id", name="pk_memory_entries"),
    )
    op.create_index("ix_memory_entries_scope_at_id", "memory_entries", ["scope", "at", "id"])


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
