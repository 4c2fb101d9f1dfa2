"""What an attempt under way may use beyond its reservation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reservations", sa.Column("excess_tokens", sa.BigInteger()))
    op.add_column("reservations", sa.Column("excess_micros", sa.LargeBinary()))
