"""Tables of semantic memory: in a file of each owner, or in the ledger's database. Every key begins with the owner.

No foreign keys: everything is deleted here by record, and a reference that is lost costs a vector or a source at most.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    text,
)

from milepost.domain.semantic import EmbeddingState
from milepost.storage.columns import Identifier, Utf8
from milepost.storage.tables import metadata, one_of

semantic_owners = Table(
    "semantic_owners",
    metadata,
    Column("owner", Identifier, nullable=False),
    Column("changes", BigInteger, nullable=False),
    Column("positions", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("embedder", Utf8),
    Column("dimensions", Integer),
    PrimaryKeyConstraint("owner"),
)

_WAITING = text("embedding <> 'embedded'")
semantic_records = Table(
    "semantic_records",
    metadata,
    Column("owner", Identifier, nullable=False),
    Column("record_id", Identifier, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("change", BigInteger, nullable=False),
    Column("identity", Identifier, nullable=False),
    Column("text", Utf8, nullable=False),
    Column("kind", Identifier, nullable=False),
    Column("speaker", Utf8, nullable=False),
    Column("captions", LargeBinary, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("asks", Boolean, nullable=False),
    Column("terms", Utf8, nullable=False),
    Column("terms_version", Integer, nullable=False),
    Column("embedding", Identifier, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("retry_at", BigInteger, nullable=False),
    Column("error", Utf8),
    PrimaryKeyConstraint("owner", "record_id"),
    UniqueConstraint("owner", "position", name="uq_semantic_records_position"),
    UniqueConstraint("owner", "identity", name="uq_semantic_records_identity"),
    Index("ix_semantic_records_change", "owner", "change"),
    Index("ix_semantic_records_waiting", "owner", "position", sqlite_where=_WAITING, postgresql_where=_WAITING),
    CheckConstraint(one_of("embedding", EmbeddingState), name="embedding"),
)

semantic_sources = Table(
    "semantic_sources",
    metadata,
    Column("owner", Identifier, nullable=False),
    Column("entry_id", Identifier, nullable=False),
    Column("record_id", Identifier, nullable=False),
    Column("change", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("turn_id", Identifier, nullable=False),
    Column("turn_number", BigInteger, nullable=False),
    Column("effect_id", Identifier, nullable=False),
    PrimaryKeyConstraint("owner", "entry_id"),
    Index("ix_semantic_sources_record", "owner", "record_id"),
)

semantic_vectors = Table(
    "semantic_vectors",
    metadata,
    Column("owner", Identifier, nullable=False),
    Column("record_id", Identifier, nullable=False),
    Column("embedder", Utf8, nullable=False),
    Column("dimensions", Integer, nullable=False),
    Column("part", Integer, nullable=False),
    Column("vector", LargeBinary, nullable=False),
    PrimaryKeyConstraint("owner", "record_id", "embedder", "dimensions", "part"),
)

semantic_links = Table(
    "semantic_links",
    metadata,
    Column("owner", Identifier, nullable=False),
    Column("older", Identifier, nullable=False),
    Column("newer", Identifier, nullable=False),
    Column("change", BigInteger, nullable=False),
    Column("near", Boolean, nullable=False),
    PrimaryKeyConstraint("owner", "older", "newer"),
    Index("ix_semantic_links_newer", "owner", "newer"),
)

semantic_forgotten = Table(
    "semantic_forgotten",
    metadata,
    Column("owner", Identifier, nullable=False),
    Column("id", Identifier, nullable=False),
    Column("record_id", Identifier, nullable=False),
    Column("change", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("by", Utf8, nullable=False),
    PrimaryKeyConstraint("owner", "id"),
    Index("ix_semantic_forgotten_change", "owner", "change"),
)

SEMANTIC_TABLES = (
    semantic_owners,
    semantic_records,
    semantic_sources,
    semantic_vectors,
    semantic_links,
    semantic_forgotten,
)
