"""Long-term memory."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()


def upgrade() -> None:
    op.create_table(
        "long_term_namespaces",
        _required("namespace_id", BIG),
        _required("name", TEXT),
        sa.Column("embedder", TEXT),
        sa.Column("dimensions", sa.Integer()),
        _required("changes", BIG),
        _required("forgotten", BIG),
        _required("records", BIG),
        _required("created_at", BIG),
        sa.PrimaryKeyConstraint("namespace_id", name="pk_long_term_namespaces"),
        sa.UniqueConstraint("name", name="uq_long_term_namespaces_name"),
        sa.CheckConstraint("(embedder IS NULL) = (dimensions IS NULL)", name=op.f("ck_long_term_namespaces_space")),
    )
    op.create_table(
        "long_term_records",
        _required("namespace_id", BIG),
        _required("key", TEXT),
        _required("version", BIG),
        _required("change", BIG),
        sa.Column("document", BYTES),
        sa.Column("facts", BYTES),
        _required("created_at", BIG),
        _required("updated_at", BIG),
        sa.Column("expires_at", BIG),
        _required("by", BYTES),
        sa.Column("run_id", TEXT),
        sa.Column("effect_id", TEXT),
        sa.PrimaryKeyConstraint("namespace_id", "key", name="pk_long_term_records"),
        sa.UniqueConstraint("namespace_id", "change", name="uq_long_term_records_namespace_id_change"),
        _namespace("long_term_records"),
        sa.CheckConstraint("(document IS NULL) = (facts IS NULL)", name=op.f("ck_long_term_records_document")),
    )
    _some("expiring", "expires_at", "expires_at IS NOT NULL AND document IS NOT NULL")
    _some("deleted", "updated_at", "document IS NULL")
    op.create_table(
        "long_term_vectors",
        _required("namespace_id", BIG),
        _required("key", TEXT),
        _required("embedder", TEXT),
        _required("dimensions", sa.Integer()),
        _required("data", BYTES),
        _required("checksum", BIG),
        sa.PrimaryKeyConstraint("namespace_id", "key", "embedder", "dimensions", name="pk_long_term_vectors"),
        _namespace("long_term_vectors"),
    )


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, autoincrement=False, nullable=False)


def _namespace(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["namespace_id"], ["long_term_namespaces.namespace_id"], name=f"fk_{table}_namespace_id"
    )


def _some(name: str, column: str, which: str) -> None:
    """An index of some rows only."""
    op.create_index(
        f"ix_long_term_records_{name}",
        "long_term_records",
        [column],
        sqlite_where=sa.text(which),
        postgresql_where=sa.text(which),
    )
