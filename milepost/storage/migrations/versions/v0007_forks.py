"""Forks of Sessions."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
COPYING = sa.text("state = 'copying'")


def upgrade() -> None:
    op.create_table(
        "forks",
        _required("session_id", TEXT),
        _required("source_id", TEXT),
        _required("to_number", sa.Integer()),
        _required("done_number", sa.Integer()),
        _required("copied", sa.Integer()),
        _required("omitted", sa.Integer()),
        _required("files", sa.Boolean()),
        _required("state", TEXT),
        _required("actor", BYTES),
        _required("created_at", sa.BigInteger()),
        sa.Column("error", BYTES),
        sa.PrimaryKeyConstraint("session_id", name="pk_forks"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_forks_session_id"),
        sa.CheckConstraint("state IN ('copying', 'done', 'failed')", name=op.f("ck_forks_state")),
    )
    op.create_index("ix_forks_copying", "forks", ["created_at"], sqlite_where=COPYING, postgresql_where=COPYING)


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
