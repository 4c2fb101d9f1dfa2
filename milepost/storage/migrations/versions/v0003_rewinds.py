"""Rewinds, and where turns come from."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()


def upgrade() -> None:
    op.create_table(
        "turn_origins",
        _required("turn_id", TEXT),
        sa.Column("retry_of", TEXT),
        sa.Column("copied_from", TEXT),
        sa.PrimaryKeyConstraint("turn_id", name="pk_turn_origins"),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"], name="fk_turn_origins_turn_id"),
    )
    op.create_table(
        "rewinds",
        _required("rewind_id", TEXT),
        _required("session_id", TEXT),
        _required("to_number", sa.Integer()),
        _required("last_number", sa.Integer()),
        _required("turns", sa.Integer()),
        _required("actor", BYTES),
        sa.Column("reason", BYTES),
        _required("created_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("rewind_id", name="pk_rewinds"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_rewinds_session_id"),
        sa.CheckConstraint("to_number >= 0 AND to_number < last_number", name=op.f("ck_rewinds_numbers")),
    )
    op.create_index("ix_rewinds_session_id_created_at_rewind_id", "rewinds", ["session_id", "created_at", "rewind_id"])


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
