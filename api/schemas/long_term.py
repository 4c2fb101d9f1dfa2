"""Long-term memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from api.schemas.base import Body, Query, Shape
from api.times import rfc3339
from milepost.domain.longterm import (
    DEFAULT_RESULTS,
    MAX_RESULTS,
    MAX_RETENTION_DAYS,
    MIN_RETENTION_DAYS,
    Found,
    NamespaceInfo,
    Provenance,
    Record,
    Scored,
    SearchMode,
)
from milepost.services.longterm import entries
from milepost.services.longterm.service import Kept, Put, SearchRequest
from milepost.services.longterm.upkeep import Reindexed

MAX_CURSOR = 1024
MAX_LIMIT = 100


class PageQuery(Query):
    """Where to go on."""

    cursor: Annotated[str, Field(max_length=MAX_CURSOR)] = ""
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50


class DeleteQuery(Query):
    expected_version: Annotated[int | None, Field(ge=0)] = None
    """Delete only this version."""


class RecordBody(Body):
    """A record to write."""

    content: dict[str, Any]
    """`{"type": "text", "text": ...}` or `{"type": "json", "value": ..., "text": ...}`. The text is searched;
    it is derived from the value where it is left out."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Names and JSON values that searches can filter by, at most 64."""
    retention_days: Annotated[int | None, Field(ge=MIN_RETENTION_DAYS, le=MAX_RETENTION_DAYS)] = None
    """After how many days it is over. Default: as configured for the namespace, else never."""
    expected_version: Annotated[int | None, Field(ge=0)] = None
    """Write only over this version; 0: only if there is none."""

    def command(self, key: str, by: str) -> Put:
        return Put(
            key=key,
            entry=entries.from_content(self.content, self.metadata),
            provenance=Provenance(by),
            retention_days=self.retention_days,
            expected=self.expected_version,
        )


class RecordSearchBody(Body):
    """What to search for."""

    query: str
    mode: Literal["text", "vector", "hybrid", "bm25", "best"] = "hybrid"
    limit: Annotated[int, Field(ge=1, le=MAX_RESULTS)] = DEFAULT_RESULTS
    filters: dict[str, Any] = Field(default_factory=dict)
    """Metadata that a record must have exactly, all of it."""

    def command(self) -> SearchRequest:
        return SearchRequest(self.query, SearchMode(self.mode), self.limit, self.filters)


class ReindexBody(Body):
    """A step of making vectors anew."""

    embedder: Annotated[str | None, Field(max_length=64)] = None
    """Default: as configured for the namespace, else `embeddings.default`."""
    after: Annotated[str, Field(max_length=MAX_CURSOR)] = ""
    """`after` of the step before."""


class NamespaceShape(Shape):
    """A namespace. Embedder and dimensions are null before its first vector; `records` may count expired ones."""

    namespace: str
    store: str
    embedder: str | None
    dimensions: int | None
    records: int
    created_at: str

    @classmethod
    def of(cls, info: NamespaceInfo) -> NamespaceShape:
        return cls(
            namespace=info.name,
            store=info.store,
            embedder=None if info.space is None else info.space.embedder,
            dimensions=None if info.space is None else info.space.dimensions,
            records=info.records,
            created_at=rfc3339(info.created_at),
        )


class NamespacePage(Shape):
    namespaces: list[NamespaceShape]
    next_cursor: str | None


class RecordShape(Shape):
    """A record. `run_id` and `effect_id` are the turn and the effect it was written by, null for a person.

    `format` is 1, or 0 for a bare JSON value of older data. `embedder` is null for a record without a vector.
    """

    namespace: str
    key: str
    version: int
    format: int
    content: dict[str, Any]
    metadata: dict[str, Any]
    created_at: str
    updated_at: str
    expires_at: str | None
    written_by: str
    run_id: str | None
    effect_id: str | None
    embedder: str | None

    @classmethod
    def of(cls, record: Record) -> RecordShape:
        return cls(
            namespace=record.namespace,
            key=record.key,
            version=record.version,
            format=0 if record.legacy else 1,
            content=entries.content_of(record.entry),
            metadata=dict(record.entry.metadata),
            created_at=rfc3339(record.created_at),
            updated_at=rfc3339(record.updated_at),
            expires_at=None if record.expires_at is None else rfc3339(record.expires_at),
            written_by=record.provenance.by,
            run_id=record.provenance.run_id,
            effect_id=record.provenance.effect_id,
            embedder=None if record.space is None else record.space.embedder,
        )


class RecordPage(Shape):
    """In order of the keys."""

    namespace: str
    records: list[RecordShape]
    next_cursor: str | None


class WrittenRecord(RecordShape):
    """`embedding_error` says why it has no vector; it is found by its words all the same."""

    embedding_error: str | None

    @classmethod
    def of_kept(cls, kept: Kept) -> WrittenRecord:
        return cls(**RecordShape.of(kept.record).model_dump(), embedding_error=kept.embedding_error)


class RecordHit(Shape):
    """Scores are millionths; the parts that the mode does not use are null, and `vector` without a vector."""

    score: int
    text: int | None
    bm25: int | None
    vector: int | None
    record: RecordShape

    @classmethod
    def of(cls, hit: Scored) -> RecordHit:
        return cls(score=hit.score, text=hit.text, bm25=hit.bm25, vector=hit.vector, record=RecordShape.of(hit.record))


class RecordHits(Shape):
    """Best first, equal scores by key.

    `exact` is false if vectors were looked for with the approximate index (over 100,000 candidates). `candidates` is
    how many records the filters left, `without_vector` how many of them have no vector.
    """

    namespace: str
    mode: str
    hits: list[RecordHit]
    exact: bool
    candidates: int
    without_vector: int
    embedder: str | None

    @classmethod
    def of(cls, namespace: str, found: Found) -> RecordHits:
        return cls(
            namespace=namespace,
            mode=found.mode.value,
            hits=[RecordHit.of(hit) for hit in found.hits],
            exact=found.exact,
            candidates=found.candidates,
            without_vector=found.without_vector,
            embedder=None if found.space is None else found.space.embedder,
        )


class ReindexStep(Shape):
    """What a step did. Until `finished` send `after` with the next one."""

    namespace: str
    embedder: str
    dimensions: int
    embedded: int
    records: int
    after: str
    finished: bool

    @classmethod
    def of(cls, step: Reindexed) -> ReindexStep:
        return cls(
            namespace=step.namespace,
            embedder=step.space.embedder,
            dimensions=step.space.dimensions,
            embedded=step.embedded,
            records=step.records,
            after=step.after,
            finished=step.finished,
        )
