"""What Sessions, turns and agents have used, what calls under way may use, and factors of token estimates."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()
OPEN = sa.text("state = 'open'")


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "spending",
        _required("scope", TEXT),
        _required("state", BYTES),
        _required("updated_at", BIG),
        sa.PrimaryKeyConstraint("scope", name="pk_spending"),
    )
    op.create_table(
        "reservations",
        _required("effect_id", TEXT),
        _required("attempt", sa.Integer()),
        _required("session_id", TEXT),
        _required("turn_id", TEXT),
        _required("agent", BYTES),
        _required("scopes", BYTES),
        _required("tokens", BIG),
        sa.Column("micros", BYTES),
        _required("state", TEXT),
        _required("created_at", BIG),
        sa.Column("settled_at", BIG),
        sa.PrimaryKeyConstraint("effect_id", "attempt", name="pk_reservations"),
        sa.ForeignKeyConstraint(["effect_id"], ["effects.effect_id"], name="fk_reservations_effect_id"),
        sa.CheckConstraint("state IN ('open', 'settled', 'assumed')", name=op.f("ck_reservations_state")),
        sa.CheckConstraint("(state = 'open') = (settled_at IS NULL)", name=op.f("ck_reservations_settled")),
    )
    op.create_index("ix_reservations_open", "reservations", ["turn_id"], sqlite_where=OPEN, postgresql_where=OPEN)
    op.create_table(
        "session_limits",
        _required("session_id", TEXT),
        _required("limits", BYTES),
        sa.PrimaryKeyConstraint("session_id", name="pk_session_limits"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_session_limits_session_id"),
    )
    op.create_table(
        "token_factors",
        _required("provider", BYTES),
        _required("model", BYTES),
        _required("factor", sa.Float()),
        _required("samples", sa.Integer()),
        _required("updated_at", BIG),
        sa.PrimaryKeyConstraint("provider", "model", name="pk_token_factors"),
    )
