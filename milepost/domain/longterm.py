"""Long-term memory: records by namespace and key, across Sessions, and how they are searched.

Times are microseconds since the epoch, UTC; scores are millionths, 0 to 1,000,000.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from milepost.domain.embeddings import EmbeddingSpace

RECORD_FORMAT: Final = 1
"""Of the stored form of an entry; a bare JSON value is of the format before it."""

MAX_ENTRY_BYTES: Final = 1024 * 1024
MAX_QUERY_BYTES: Final = 64 * 1024
MAX_NAME_BYTES: Final = 512
"""Of the name of a namespace, and of a key."""

MAX_METADATA: Final = 64
"""Entries of a record's metadata, and conditions of a filter."""

DEFAULT_RESULTS: Final = 10
MAX_RESULTS: Final = 100
MIN_RETENTION_DAYS: Final = 1
MAX_RETENTION_DAYS: Final = 36_500
EXACT_CANDIDATES: Final = 100_000
"""Candidates, after filters, up to which a search by vectors looks at each of them."""

DAY_US: Final = 86_400_000_000
DEFAULT_STORE: Final = "database"


class ContentType(StrEnum):
    TEXT = "text"
    JSON = "json"


class SearchMode(StrEnum):
    """How records are scored; `engine.lexical` has the formulas. `best` is the one of recall."""

    TEXT = "text"
    VECTOR = "vector"
    HYBRID = "hybrid"
    BM25 = "bm25"
    BEST = "best"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a record holds. `text` is what is searched; for JSON it may be None and is then derived from `value`."""

    type: ContentType
    text: str | None = None
    value: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who wrote a record: a name (`agent ID`, `api`), and the turn and effect it was written by, if any."""

    by: str
    run_id: str | None = None
    effect_id: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A stored entry. `version` counts its writes. `legacy`: it was stored as a bare JSON value.

    `space` is that of its vector; None: it has no vector (any more), so only its words are found.
    """

    namespace: str
    key: str
    version: int
    entry: Entry
    text: str
    created_at: int
    updated_at: int
    expires_at: int | None
    provenance: Provenance
    space: EmbeddingSpace | None = None
    legacy: bool = False


@dataclass(frozen=True, slots=True)
class Scored:
    """A hit, with the parts of its score that its mode asked for. `vector` is None without a vector."""

    record: Record
    score: int
    text: int | None = None
    bm25: int | None = None
    vector: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The hits of a search, best first, equal scores by key.

    `exact` is False if vectors were looked for with the approximate index; scores are exact all the same.
    `candidates` is how many records the filter left, `without_vector` how many of them have no vector.
    """

    hits: tuple[Scored, ...]
    mode: SearchMode
    exact: bool
    candidates: int
    without_vector: int
    space: EmbeddingSpace | None


@dataclass(frozen=True, slots=True)
class NamespaceInfo:
    """A namespace. `space` is that of its vectors, None before the first one."""

    name: str
    store: str
    space: EmbeddingSpace | None
    records: int
    created_at: int


@dataclass(frozen=True, slots=True)
class NamespaceRule:
    """What the configuration says of a namespace. None: the default."""

    store: str = DEFAULT_STORE
    embedder: str | None = None
    retention_days: int | None = None


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A store of a Python package, by its entry point."""

    entry_point: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LongTermConfig:
    """`default` counts for namespaces that are not named."""

    default: NamespaceRule = NamespaceRule()
    namespaces: Mapping[str, NamespaceRule] = field(default_factory=dict)
    stores: Mapping[str, StoreConfig] = field(default_factory=dict)

    def rule(self, namespace: str) -> NamespaceRule:
        """What counts for a namespace."""
        return self.namespaces.get(namespace, self.default)


@dataclass(frozen=True, slots=True)
class AgentLongTerm:
    """What an agent may use: its tools write to and read from `namespaces`, the first if it names none.

    `retention_days` is that of what it writes where it does not say.
    """

    namespaces: tuple[str, ...]
    retention_days: int | None = None


LONG_TERM_TOOLS: Final = (
    "long_term_memory_read",
    "long_term_memory_search",
    "long_term_memory_write",
    "long_term_memory_delete",
)
