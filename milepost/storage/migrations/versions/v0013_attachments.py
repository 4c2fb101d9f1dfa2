"""Attachments of Sessions, and what is found in them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()
KINDS = "kind IN ('session', 'request', 'attachment', 'output', 'error', 'call', 'result')"


def upgrade() -> None:
    op.create_table(
        "attachments",
        _required("attachment_id", TEXT),
        _required("session_id", TEXT),
        _required("scope", TEXT),
        _required("state", TEXT),
        _required("ref", BYTES),
        sa.Column("text", BYTES),
        _required("created_at", BIG),
        _required("tried_at", BIG),
        sa.Column("used_by", TEXT),
        sa.Column("removed_at", BIG),
        sa.PrimaryKeyConstraint("attachment_id", name="pk_attachments"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.session_id"], name="fk_attachments_session_id"),
        sa.CheckConstraint("scope IN ('once', 'session')", name=op.f("ck_attachments_scope")),
        sa.CheckConstraint(
            "state IN ('pending', 'extracting', 'ready', 'partial', 'failed', 'unsupported')",
            name=op.f("ck_attachments_state"),
        ),
    )
    op.create_index(
        "ix_attachments_session_id_created_at_attachment_id",
        "attachments",
        ["session_id", "created_at", "attachment_id"],
    )
    # SQLite makes the table anew; ids of rows stay, which the words of passages go by.
    with op.batch_alter_table("search_passages") as passages:
        passages.drop_constraint(op.f("ck_search_passages_kind"), type_="check")
        passages.create_check_constraint(op.f("ck_search_passages_kind"), KINDS)


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
