"""The search index. Events that are there already are indexed by `milepost db reindex`."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
BYTES = sa.LargeBinary()
BIG = sa.BigInteger()
KINDS = "kind IN ('session', 'request', 'output', 'error', 'call', 'result')"


def _required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "search_passages",
        sa.Column("doc_id", BIG.with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        _required("session_id", TEXT),
        _required("seq", BIG),
        _required("kind", TEXT),
        _required("part", sa.Integer()),
        _required("passage", sa.Integer()),
        _required("first_character", sa.Integer()),
        _required("last_character", sa.Integer()),
        _required("agent", BYTES),
        sa.Column("turn_id", TEXT),
        _required("at", BIG),
        sa.PrimaryKeyConstraint("doc_id", name="pk_search_passages"),
        sa.UniqueConstraint(
            "session_id",
            "seq",
            "kind",
            "part",
            "passage",
            name="uq_search_passages_session_id_seq_kind_part_passage",
        ),
        sa.CheckConstraint(KINDS, name=op.f("ck_search_passages_kind")),
    )
    op.create_index("ix_search_passages_at_doc_id", "search_passages", ["at", "doc_id"])
    op.create_table(
        "search_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        _required("version", sa.Integer()),
        _required("complete", sa.Boolean()),
        sa.PrimaryKeyConstraint("id", name="pk_search_state"),
        sa.CheckConstraint("id = 1", name=op.f("ck_search_state_single_row")),
    )
    op.execute(
        "INSERT INTO search_state (id, version, complete)"
        " SELECT 1, 1, NOT EXISTS (SELECT 1 FROM streams WHERE kind = 'session')"
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE TABLE search_words (doc_id bigint PRIMARY KEY, words tsvector NOT NULL)")
        op.execute("CREATE INDEX ix_search_words_words ON search_words USING gin (words)")
    else:
        op.execute("CREATE VIRTUAL TABLE search_words USING fts5 (words, content = '', tokenize = 'ascii')")
