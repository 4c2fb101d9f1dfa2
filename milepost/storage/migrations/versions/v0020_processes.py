"""Terminals and background commands of Sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
RUNS = sa.text("ended_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "processes",
        sa.Column("process_id", TEXT, nullable=False),
        sa.Column("session_id", TEXT, nullable=False),
        sa.Column("host", TEXT, nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("process_id", name="pk_processes"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_processes_session_id"),
    )
    op.create_index("ix_processes_session_id", "processes", ["session_id", "started_at"])
    op.create_index("ix_processes_running", "processes", ["host"], sqlite_where=RUNS, postgresql_where=RUNS)
