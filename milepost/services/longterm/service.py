"""The use cases of long-term memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any
from zlib import crc32

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import (
    EmbeddingFailed,
    EmbeddingMismatch,
    InvalidInput,
    NamespaceNotFound,
    PayloadTooLarge,
    RecordNotFound,
    VectorCorrupt,
)
from milepost.domain.longterm import (
    DAY_US,
    DEFAULT_RESULTS,
    MAX_METADATA,
    MAX_QUERY_BYTES,
    MAX_RESULTS,
    MAX_RETENTION_DAYS,
    MIN_RETENTION_DAYS,
    Entry,
    Found,
    LongTermConfig,
    NamespaceInfo,
    Provenance,
    Record,
    Scored,
    SearchMode,
)
from milepost.engine.lexical import tokens
from milepost.ports.embeddings import Embedder, Embedders
from milepost.ports.longterm import LongTermStore, Namespace, Stored, Vector, Write
from milepost.ports.system import Clock
from milepost.services.longterm import entries
from milepost.services.longterm.indexes import Indexes

if TYPE_CHECKING:
    from milepost.services.longterm import scoring

OpenStore = Callable[[str], Awaitable[LongTermStore]]
"""The store of a name. Raises MemoryStoreUnavailable."""

MAX_TRIES = 3
"""Of a search whose hits change while it runs."""

CHUNK = 500
MAX_LIST = 500
LIST_AT_A_TIME = 20
MAX_LIST_BYTES = 8 * 1024 * 1024
"""Of the records of one page of a list, as they are stored; a page of large ones has fewer of them."""

BY_WORDS = "Searches by words (text, bm25) work meanwhile."


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What to search for. `filters`: metadata that a record must have exactly, all of it."""

    query: str
    mode: SearchMode = SearchMode.HYBRID
    limit: int = DEFAULT_RESULTS
    filters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Put:
    """What to write. `expected`: the version that must be there, 0 for none, None for any.

    `retention_days` None: as the configuration says of the namespace, else for ever.
    """

    key: str
    entry: Entry
    provenance: Provenance
    retention_days: int | None = None
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A written record. `embedding_error` says why it has no vector."""

    record: Record
    embedding_error: str | None = None


class LongTermMemory:
    """Records of all namespaces, each in the store and with the embedder that the configuration says."""

    def __init__(
        self,
        open_store: OpenStore,
        embedders: Embedders,
        clock: Clock,
        config: LongTermConfig,
        indexes: Indexes | None = None,
    ) -> None:
        self.config = config
        self.embedders = embedders
        self.clock = clock
        self.open_store = open_store
        self._indexes = indexes or Indexes()

    async def store(self, namespace: str) -> LongTermStore:
        """The store of a namespace. Raises MemoryStoreUnavailable."""
        return await self.open_store(self.config.rule(namespace).store)

    # --- records ------------------------------------------------------------------------------------------------

    async def get(self, namespace: str, key: str) -> Record:
        """One record.

        Raises:
            RecordNotFound: there is none, or its time is over.
            RecordUnreadable, InvalidInput, MemoryStoreUnavailable, StorageUnavailable.
        """
        _check(namespace, key)
        store = await self.store(namespace)
        stored = (await store.get(namespace, [key])).get(key)
        if stored is None or _over(stored, self.clock.now()):
            raise RecordNotFound(
                f"The namespace '{namespace}' has no record '{key}'.", field="key", fix="List what there is."
            )
        space = await store.namespace(namespace)
        return self._record(namespace, stored, space)

    async def put(self, namespace: str, put: Put) -> Kept:
        """Write a record; see `put_many`."""
        return (await self.put_many(namespace, [put]))[0]

    async def put_many(self, namespace: str, puts: Sequence[Put]) -> list[Kept]:
        """Write records, all or none; each with a vector if its namespace's embedder makes one.

        Raises:
            VersionConflict: a record is not of the version that is expected.
            InvalidInput, PayloadTooLarge, MemoryStoreUnavailable, StorageUnavailable.
        """
        if not 1 <= len(puts) <= CHUNK or len({put.key for put in puts}) < len(puts):
            raise InvalidInput(f"Write 1 to {CHUNK} records of different keys at once.", field="records")
        prepared = await asyncio.to_thread(self._prepared, namespace, puts)
        store = await self.store(namespace)
        place = await store.namespace(namespace)
        vectors, why = await self._vectors(namespace, place, [entries.searchable(put.entry) for put in puts])
        writes = [
            Write(
                key=put.key,
                document=document,
                facts=facts,
                at=now,
                expires_at=expires,
                by=put.provenance.by,
                run_id=put.provenance.run_id,
                effect_id=put.provenance.effect_id,
                expected=put.expected,
                vector=vector,
            )
            for put, (document, facts, now, expires), vector in zip(puts, prepared, vectors, strict=True)
        ]
        stored = await store.put(namespace, writes)
        space = await store.namespace(namespace)
        return [Kept(self._record(namespace, item, space), None if item.embedded else why) for item in stored]

    def _prepared(self, namespace: str, puts: Sequence[Put]) -> list[tuple[bytes, bytes, int, int | None]]:
        now = self.clock.now()
        found = []
        for put in puts:
            _check(namespace, put.key)
            days = self.config.rule(namespace).retention_days if put.retention_days is None else put.retention_days
            if days is not None and not MIN_RETENTION_DAYS <= days <= MAX_RETENTION_DAYS:
                raise InvalidInput(
                    f"A retention of {days} days is not possible: {MIN_RETENTION_DAYS} to {MAX_RETENTION_DAYS:,} are.",
                    field="retention_days",
                )
            if put.expected is not None and put.expected < 0:
                raise InvalidInput("A version is at least 0.", field="expected_version")
            expires = None if days is None else now + days * DAY_US
            found.append((entries.document(put.entry), entries.facts(put.entry), now, expires))
        return found

    async def _vectors(
        self, namespace: str, place: Namespace | None, texts: Sequence[str]
    ) -> tuple[list[Vector | None], str | None]:
        """Vectors for new records, None for those that have to do without, and why."""
        none: list[Vector | None] = [None] * len(texts)
        try:
            embedder = self._writer(namespace, place)
            made = await embedder.embed(texts)
        except (EmbeddingFailed, EmbeddingMismatch) as error:
            return none, str(error)
        return [Vector(embedder.space, data, crc32(data)) for data in made], None

    async def delete(self, namespace: str, key: str, expected: int | None = None) -> None:
        """Delete a record. Raises RecordNotFound, VersionConflict, InvalidInput, StorageUnavailable."""
        _check(namespace, key)
        store, now = await self.store(namespace), self.clock.now()
        known = (await store.get(namespace, [key])).get(key)
        over = known is not None and _over(known, now)
        if over or not await store.delete(namespace, key, expected, now):
            raise RecordNotFound(f"The namespace '{namespace}' has no record '{key}'.", field="key")

    async def page(self, namespace: str, *, after: str = "", limit: int = 100) -> tuple[list[Record], str | None]:
        """Records in order of their keys, at most `limit` and 8 MiB, and where to go on (None: the end).

        Raises NamespaceNotFound, InvalidInput, RecordUnreadable, StorageUnavailable.
        """
        _check(namespace)
        if not 1 <= limit <= MAX_LIST:
            raise InvalidInput(f"1 to {MAX_LIST} records can be listed at once.", field="limit")
        store = await self.store(namespace)
        place = await self._existing(store, namespace)
        now, found, size = self.clock.now(), list[Record](), 0
        while True:
            page = await store.page(namespace, after, LIST_AT_A_TIME)
            for stored in page:
                if not _over(stored, now):
                    size += len(stored.document)
                    if len(found) == limit or (found and size > MAX_LIST_BYTES):
                        return found, after
                    found.append(self._record(namespace, stored, place))
                after = stored.key
            if len(page) < LIST_AT_A_TIME:
                return found, None

    async def namespaces(self, *, after: str = "", limit: int = 100) -> list[NamespaceInfo]:
        """Namespaces of every store that the configuration names, in order of their names."""
        names = dict.fromkeys([self.config.default.store, *(rule.store for rule in self.config.namespaces.values())])
        found: list[NamespaceInfo] = []
        for name in names:
            store = await self.open_store(name)
            found += [
                NamespaceInfo(place.name, name, place.space, place.records, place.created_at)
                for place in await store.namespaces(after, limit)
                if self.config.rule(place.name).store == name
            ]
        return sorted(found, key=lambda info: info.name)[:limit]

    # --- search -------------------------------------------------------------------------------------------------

    async def search(self, namespace: str, request: SearchRequest) -> Found:
        """The best records for a query. A namespace that does not exist has none.

        Raises:
            EmbeddingMismatch: the vectors are of an embedder that is not the configured one, or not there.
            VectorCorrupt: a vector is not what was written; `text` and `bm25` still work.
            EmbeddingFailed: the query could not be embedded.
            InvalidInput, PayloadTooLarge, MemoryStoreUnavailable, StorageUnavailable.
        """
        _check(namespace)
        wanted = await asyncio.to_thread(_query_words, request)
        labels = tuple(entries.label(name, value) for name, value in request.filters.items())
        scoring = await asyncio.to_thread(_scoring)
        store = await self.store(namespace)
        for attempt in range(1, MAX_TRIES + 1):
            place = await store.namespace(namespace)
            if place is None:
                return Found((), request.mode, True, 0, 0, None)
            embedder = self._reader(namespace, place, request.mode)
            neural = embedder is not None and embedder.neural
            vector = None
            if embedder is not None and (neural or request.mode is not SearchMode.BEST):
                (vector,) = await embedder.embed([request.query])
            query = scoring.Query(request.mode, wanted, vector, neural, labels, request.limit, self.clock.now())
            found = await self._found(namespace, store, place, query, last=attempt == MAX_TRIES)
            if found is not None:
                return found
        raise AssertionError("the last try returns or raises")

    async def _found(
        self, namespace: str, store: LongTermStore, place: Namespace, query: scoring.Query, *, last: bool
    ) -> Found | None:
        """The hits; None if one of them has changed meanwhile and this is not the last try."""

        def look(index: Any) -> scoring.Pool:
            if query.by_vector and index.corrupt is not None:
                raise _corrupt(namespace, index.corrupt)
            return scoring.finalists(index, query)

        from milepost.services.longterm import scoring

        name = self.config.rule(namespace).store
        pool = await self._indexes.use(name, store, place, look)
        originals = pool.originals
        if originals is None:
            read = await _originals(namespace, store, place, pool) if query.by_vector else {}
            if read is None and not last:
                return None
            originals = read or {}
        best = await asyncio.to_thread(scoring.hits, pool, query, originals)
        records = await store.get(namespace, [hit.key for hit in best]) if best else {}
        current = [hit for hit in best if hit.key in records and records[hit.key].change == hit.change]
        if len(current) < len(best) and not last:
            return None
        hits = tuple(
            Scored(self._record(namespace, records[hit.key], place), hit.score, hit.text, hit.bm25, hit.vector)
            for hit in current
        )
        return Found(hits, query.mode, pool.exact, pool.candidates, pool.without_vector, place.space)

    def _reader(self, namespace: str, place: Namespace, mode: SearchMode) -> Embedder | None:
        """What embeds a query; None if nothing has to. Raises EmbeddingMismatch."""
        if mode in (SearchMode.TEXT, SearchMode.BM25) or place.space is None:
            return None
        configured = self.config.rule(namespace).embedder
        embedder = self.embedders.for_space(place.space)
        if configured is not None and self.embedders.named(configured).space != place.space:
            raise self._mismatch(namespace, place.space, f"the configuration names '{configured}'")
        if embedder is None:
            raise self._mismatch(namespace, place.space, "no embedder of this instance makes such")
        return embedder

    def _writer(self, namespace: str, place: Namespace | None) -> Embedder:
        """What embeds a new record: what made the namespace's vectors, else what is configured."""
        if place is None or place.space is None:
            return self.configured(namespace)
        embedder = self.embedders.for_space(place.space)
        if embedder is None:
            raise self._mismatch(namespace, place.space, "no embedder of this instance makes such")
        return embedder

    def configured(self, namespace: str) -> Embedder:
        """The embedder that the configuration wants for a namespace. Raises EmbedderUnknown."""
        name = self.config.rule(namespace).embedder
        return self.embedders.default if name is None else self.embedders.named(name)

    def _mismatch(self, namespace: str, space: EmbeddingSpace, why: str) -> EmbeddingMismatch:
        return EmbeddingMismatch(
            f"The vectors of namespace '{namespace}' are of {space}, and {why}.",
            field="embedder",
            fix=f"Make them anew: milepost memory reindex {namespace}. {BY_WORDS}",
        )

    async def _existing(self, store: LongTermStore, namespace: str) -> Namespace:
        place = await store.namespace(namespace)
        if place is None:
            raise NamespaceNotFound(f"There is no namespace '{namespace}'.", field="namespace")
        return place

    def _record(self, namespace: str, stored: Stored, place: Namespace | None) -> Record:
        entry, legacy = entries.read(stored.document, f"'{stored.key}' of namespace '{namespace}'")
        return Record(
            namespace=namespace,
            key=stored.key,
            version=stored.version,
            entry=entry,
            text=entries.searchable(entry),
            created_at=stored.created_at,
            updated_at=stored.updated_at,
            expires_at=stored.expires_at,
            provenance=Provenance(stored.by, stored.run_id, stored.effect_id),
            space=place.space if stored.embedded and place is not None else None,
            legacy=legacy,
        )


def _scoring() -> ModuleType:
    from milepost.services.longterm import scoring  # and numpy, which searches alone need and which is slow to import

    return scoring


def _check(namespace: str, key: str | None = None) -> None:
    entries.check_name(namespace, "namespace", "The name of a namespace")
    if "/" in namespace:
        raise InvalidInput("The name of a namespace has no slash.", field="namespace")
    if key is not None:
        entries.check_name(key, "key", "A key")


def _over(stored: Stored, now: int) -> bool:
    return stored.expires_at is not None and stored.expires_at <= now


def _query_words(request: SearchRequest) -> tuple[str, ...]:
    size = len(request.query.encode("utf-8", "surrogatepass"))
    if size > MAX_QUERY_BYTES:
        raise PayloadTooLarge(f"The query has {size} bytes; at most {MAX_QUERY_BYTES} are accepted.", field="query")
    if not 1 <= request.limit <= MAX_RESULTS:
        raise InvalidInput(f"1 to {MAX_RESULTS} results are possible.", field="limit")
    if len(request.filters) > MAX_METADATA:
        raise InvalidInput(f"A filter has at most {MAX_METADATA} conditions.", field="filters")
    return tuple(dict.fromkeys(tokens(request.query)))


async def _originals(
    namespace: str, store: LongTermStore, place: Namespace, pool: scoring.Pool
) -> dict[str, bytes] | None:
    """The vectors of a pool by key; None if they are of another space by now."""
    keys = [item.key for item in pool.finalists if item.embedded]
    found: dict[str, bytes] = {}
    for first in range(0, len(keys), CHUNK):
        for key, vector in (await store.vectors(namespace, keys[first : first + CHUNK])).items():
            if vector.space != place.space:
                return None
            if not entries.sound(vector, vector.space):
                raise _corrupt(namespace, key)
            found[key] = vector.data
    return found


def _corrupt(namespace: str, key: str) -> VectorCorrupt:
    return VectorCorrupt(
        f"The vector of record '{key[:200]}' of namespace '{namespace}' is damaged.",
        fix=f"Make the vectors anew: milepost memory reindex {namespace}. {BY_WORDS}",
    )
