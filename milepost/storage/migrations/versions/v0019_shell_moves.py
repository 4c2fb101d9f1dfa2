"""Finding where an agent's commands went last, however long a Session and its turns are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

MOVES = sa.text("type = 'shell.moved'")


def upgrade() -> None:
    op.create_index("ix_events_moves", "events", ["stream", "seq"], sqlite_where=MOVES, postgresql_where=MOVES)
