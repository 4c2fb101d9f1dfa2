"""Parts of event payloads that repeat, kept once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_MESSAGE = "events are append-only"


def upgrade() -> None:
    op.create_table(
        "shared_payloads",
        sa.Column("digest", sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql"), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_shared_payloads"),
    )
    if op.get_bind().dialect.name == "sqlite":
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER shared_payloads_no_{action.lower()} BEFORE {action} ON shared_payloads"
                f" BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
            )
        return
    for action, level in (("UPDATE", "ROW"), ("DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
        op.execute(
            f"CREATE TRIGGER shared_payloads_no_{action.lower()} BEFORE {action} ON shared_payloads FOR EACH {level}"
            f" EXECUTE FUNCTION ledger_refuse('{_MESSAGE}')"
        )
