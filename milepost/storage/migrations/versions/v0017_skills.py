"""Skills that were chosen for a Session."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "session_skills",
        sa.Column("session_id", sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql"), nullable=False),
        sa.Column("skills", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", name="pk_session_skills"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_session_skills_session_id"),
    )
