"""Semantic memory."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()
_WAITING = sa.text("embedding <> 'embedded'")


def upgrade() -> None:
    op.create_table(
        "semantic_owners",
        _required("owner", TEXT),
        _required("changes", BIG),
        _required("positions", BIG),
        _required("generation", BIG),
        sa.Column("embedder", BYTES),
        sa.Column("dimensions", sa.Integer()),
        sa.PrimaryKeyConstraint("owner", name="pk_semantic_owners"),
    )
    op.create_table(
        "semantic_records",
        _required("owner", TEXT),
        _required("record_id", TEXT),
        _required("position", BIG),
        _required("change", BIG),
        _required("identity", TEXT),
        _required("text", BYTES),
        _required("kind", TEXT),
        _required("speaker", BYTES),
        _required("captions", BYTES),
        _required("at", BIG),
        _required("asks", sa.Boolean()),
        _required("terms", BYTES),
        _required("terms_version", sa.Integer()),
        _required("embedding", TEXT),
        _required("attempts", sa.Integer()),
        _required("retry_at", BIG),
        sa.Column("error", BYTES),
        sa.PrimaryKeyConstraint("owner", "record_id", name="pk_semantic_records"),
        sa.UniqueConstraint("owner", "position", name="uq_semantic_records_position"),
        sa.UniqueConstraint("owner", "identity", name="uq_semantic_records_identity"),
        sa.CheckConstraint(
            "embedding IN ('pending', 'embedded', 'failed')", name=op.f("ck_semantic_records_embedding")
        ),
    )
    op.create_index("ix_semantic_records_change", "semantic_records", ["owner", "change"])
    op.create_index(
        "ix_semantic_records_waiting",
        "semantic_records",
        ["owner", "position"],
        sqlite_where=_WAITING,
        postgresql_where=_WAITING,
    )
    op.create_table(
        "semantic_sources",
        _required("owner", TEXT),
        _required("entry_id", TEXT),
        _required("record_id", TEXT),
        _required("change", BIG),
        _required("at", BIG),
        _required("turn_id", TEXT),
        _required("turn_number", BIG),
        _required("effect_id", TEXT),
        sa.PrimaryKeyConstraint("owner", "entry_id", name="pk_semantic_sources"),
    )
    op.create_index("ix_semantic_sources_record", "semantic_sources", ["owner", "record_id"])
    _derived()


def _derived() -> None:
    op.create_table(
        "semantic_vectors",
        _required("owner", TEXT),
        _required("record_id", TEXT),
        _required("embedder", BYTES),
        _required("dimensions", sa.Integer()),
        _required("part", sa.Integer()),
        _required("vector", BYTES),
        sa.PrimaryKeyConstraint("owner", "record_id", "embedder", "dimensions", "part", name="pk_semantic_vectors"),
    )
    op.create_table(
        "semantic_links",
        _required("owner", TEXT),
        _required("older", TEXT),
        _required("newer", TEXT),
        _required("change", BIG),
        _required("near", sa.Boolean()),
        sa.PrimaryKeyConstraint("owner", "older", "newer", name="pk_semantic_links"),
    )
    op.create_index("ix_semantic_links_newer", "semantic_links", ["owner", "newer"])
    op.create_table(
        "semantic_forgotten",
        _required("owner", TEXT),
        _required("id", TEXT),
        _required("record_id", TEXT),
        _required("change", BIG),
        _required("at", BIG),
        _required("by", BYTES),
        sa.PrimaryKeyConstraint("owner", "id", name="pk_semantic_forgotten"),
    )
    op.create_index("ix_semantic_forgotten_change", "semantic_forgotten", ["owner", "change"])


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)
