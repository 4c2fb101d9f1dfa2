"""Approvals, policy rules, and answers in the outbox."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()
PENDING = sa.text("state = 'pending'")
OPEN = sa.text("delivered_at IS NULL AND dropped_at IS NULL")
KINDS = "kind IN ('answer_approval', 'start_turn', 'cancel_turn')"


def upgrade() -> None:
    _approvals()
    _policy_rules()
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint(op.f("ck_outbox_kind"), "outbox", type_="check")
        op.create_check_constraint(op.f("ck_outbox_kind"), "outbox", KINDS)
    else:
        _sqlite_outbox()


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def _approvals() -> None:
    op.create_table(
        "approvals",
        _required("approval_id", TEXT),
        _required("effect_id", TEXT),
        _required("session_id", TEXT),
        _required("turn_id", TEXT),
        _required("agent", BYTES),
        _required("tool", BYTES),
        _required("call_id", BYTES),
        _required("input_digest", TEXT),
        _required("preview", BYTES),
        _required("truncated", sa.Boolean()),
        _required("state", TEXT),
        _required("requested_at", BIG),
        _required("expires_at", BIG),
        sa.Column("resolved_at", BIG),
        sa.Column("actor", BYTES),
        sa.Column("reason", BYTES),
        sa.PrimaryKeyConstraint("approval_id", name="pk_approvals"),
        sa.ForeignKeyConstraint(["effect_id"], ["effects.effect_id"], name="fk_approvals_effect_id"),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"], name="fk_approvals_turn_id"),
        sa.UniqueConstraint("effect_id", name="uq_approvals_effect_id"),
        sa.CheckConstraint(
            "state IN ('pending', 'approved', 'rejected', 'expired', 'closed')", name=op.f("ck_approvals_state")
        ),
        sa.CheckConstraint("(state = 'pending') = (resolved_at IS NULL)", name=op.f("ck_approvals_resolved")),
    )
    op.create_index("ix_approvals_pending", "approvals", ["turn_id"], sqlite_where=PENDING, postgresql_where=PENDING)
    op.create_index("ix_approvals_requested_at_approval_id", "approvals", ["requested_at", "approval_id"])
    op.create_index("ix_approvals_session_id_requested_at", "approvals", ["session_id", "requested_at"])


def _policy_rules() -> None:
    op.create_table(
        "policy_rules",
        _required("rule_id", TEXT),
        sa.Column("agent", BYTES),
        sa.Column("tool", BYTES),
        _required("verdict", TEXT),
        _required("once", sa.Boolean()),
        _required("created_at", BIG),
        _required("created_by", BYTES),
        sa.Column("reason", BYTES),
        sa.Column("approval_id", TEXT),
        sa.Column("used_at", BIG),
        sa.Column("used_by", TEXT),
        sa.Column("revoked_at", BIG),
        sa.Column("revoked_by", BYTES),
        sa.PrimaryKeyConstraint("rule_id", name="pk_policy_rules"),
        sa.CheckConstraint("verdict IN ('allow', 'deny')", name=op.f("ck_policy_rules_verdict")),
    )
    op.create_index("ix_policy_rules_created_at_rule_id", "policy_rules", ["created_at", "rule_id"])


def _sqlite_outbox() -> None:
    """SQLite cannot change a check, so the table is made anew with its rows."""
    op.create_table(
        "outbox_new",
        _required("item_id", TEXT),
        _required("kind", TEXT),
        _required("subject", TEXT),
        _required("created_at", BIG),
        _required("due_at", BIG),
        _required("attempts", sa.Integer()),
        sa.Column("last_error", BYTES),
        sa.Column("leased_by", BYTES),
        sa.Column("leased_until", BIG),
        sa.Column("delivered_at", BIG),
        sa.Column("dropped_at", BIG),
        sa.PrimaryKeyConstraint("item_id", name="pk_outbox"),
        sa.UniqueConstraint("kind", "subject", name="uq_outbox_kind_subject"),
        sa.CheckConstraint(KINDS, name=op.f("ck_outbox_kind")),
    )
    columns = (
        "item_id, kind, subject, created_at, due_at, attempts, last_error, leased_by, leased_until, delivered_at,"
        " dropped_at"
    )
    op.execute(f"INSERT INTO outbox_new ({columns}) SELECT {columns} FROM outbox")  # noqa: S608 - constants
    op.drop_table("outbox")
    op.rename_table("outbox_new", "outbox")
    op.create_index("ix_outbox_open", "outbox", ["due_at"], sqlite_where=OPEN)
    op.create_index("ix_outbox_subject", "outbox", ["subject"])
