"""Stopped agents, and consolidations of memory."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()
STATES = "'running', 'pending', 'applied', 'empty', 'rejected', 'reverted', 'failed'"


def upgrade() -> None:
    op.create_table(
        "agent_stops",
        _required("agent", BYTES),
        _required("stopped_at", BIG),
        _required("actor", BYTES),
        sa.Column("reason", BYTES),
        sa.PrimaryKeyConstraint("agent", name="pk_agent_stops"),
    )
    op.create_table(
        "consolidations",
        _required("consolidation_id", TEXT),
        _required("session_id", TEXT),
        _required("agent", BYTES),
        _required("state", TEXT),
        _required("created_at", BIG),
        _required("updated_at", BIG),
        _required("detail", BYTES),
        sa.PrimaryKeyConstraint("consolidation_id", name="pk_consolidations"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_consolidations_session_id"),
        sa.CheckConstraint(f"state IN ({STATES})", name=op.f("ck_consolidations_state")),
    )
    op.create_index(
        "ix_consolidations_session_id_agent_created_at", "consolidations", ["session_id", "agent", "created_at"]
    )
    op.create_index("ix_consolidations_created_at", "consolidations", ["created_at"])


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
