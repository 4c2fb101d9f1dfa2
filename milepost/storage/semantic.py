"""Semantic memory in SQL, the same for a file of one owner and for the ledger's database."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, delete, exists, func, insert, select, update

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.semantic import (
    FACT,
    Added,
    AddOutcome,
    EmbeddingState,
    MemoryRecord,
    SemanticStats,
    Source,
)
from milepost.engine.recall import TERMS_VERSION, asks, terms_of
from milepost.ports.semantic_records import (
    Changes,
    Embedded,
    Head,
    IndexRow,
    Link,
    Mention,
    PreparedEntry,
    StoredRecord,
    Unembedded,
)
from milepost.storage.semantic_tables import (
    SEMANTIC_TABLES,
    semantic_forgotten,
    semantic_links,
    semantic_owners,
    semantic_records,
    semantic_sources,
    semantic_vectors,
)
from milepost.storage.statements import insert_ignore

RETRY_US: Final = 10_000_000
MAX_RETRY_US: Final = 3600_000_000
MAX_ERROR: Final = 500
_ID_BATCH: Final = 500

_r, _s, _v, _l, _f = semantic_records.c, semantic_sources.c, semantic_vectors.c, semantic_links.c, semantic_forgotten.c
_ADD_OWNER = insert_ignore(semantic_owners)
_OWNER = select(semantic_owners).where(semantic_owners.c.owner == bindparam("owner"))
_LOCK = _OWNER.with_for_update()
_INDEXED = (
    _r.record_id,
    _r.change,
    _r.position,
    _r.at,
    _r.kind,
    _r.asks,
    _r.terms,
    _r.terms_version,
    _r.embedding,
)
_EMBEDDED = (
    update(semantic_records)
    .where(_r.owner == bindparam("of"), _r.record_id == bindparam("id"))
    .values(embedding=EmbeddingState.EMBEDDED.value, error=None, change=bindparam("n"))
)


class SqlSemanticRecords:
    """`ports.semantic_records.SemanticRecords` over an open connection; whoever made it commits or rolls back."""

    def __init__(self, conn: Connection, owner: str) -> None:
        self._conn = conn
        self._owner = owner
        self._changes: int | None = None
        self._positions = 0

    # --- state ------------------------------------------------------------------------------------------------

    def head(self) -> Head:
        row = self._conn.execute(_OWNER, {"owner": self._owner}).first()
        return Head(0, 0, None) if row is None else _head(row)

    def _lock(self) -> Head:
        """Take the owner's row until the transaction ends, so that changes are numbered in the order of commits."""
        row = self._conn.execute(_LOCK, {"owner": self._owner}).first()
        if row is None:
            new = {"owner": self._owner, "changes": 0, "positions": 0, "generation": 1}
            self._conn.execute(_ADD_OWNER.on(self._conn), new)
            row = self._conn.execute(_LOCK, {"owner": self._owner}).one()
        if self._changes is None:
            self._changes = row.changes
            self._positions = row.positions
        return _head(row)

    def _next(self) -> int:
        assert self._changes is not None  # noqa: S101
        self._changes += 1
        return self._changes

    def _save(self, **values: Any) -> None:
        query = update(semantic_owners).where(semantic_owners.c.owner == self._owner)
        self._conn.execute(query.values(changes=self._changes, positions=self._positions, **values))

    # --- adding -----------------------------------------------------------------------------------------------

    def put(self, entries: Sequence[PreparedEntry]) -> list[Added]:
        self._lock()
        batch = _Batch(self._owner, self._known(entries))
        for prepared in entries:
            batch.take(prepared, self._next, self._next_position)
        for table, rows in ((semantic_records, batch.records), (semantic_sources, batch.sources)):
            if rows:
                self._conn.execute(insert(table), rows)
        for record, change in batch.said_again.items():
            self._touch([record], change)
            self._say_again(record, change)
        for newer, entry, change in batch.supersedes:
            older = self._record_of(entry)
            if older is not None and older != newer:
                self._link(newer, older, change, near=False)
        self._save()
        states = self.states([record for _, record, _ in batch.outcomes])
        return [
            Added(entry, record, outcome, states.get(record, EmbeddingState.PENDING))
            for entry, record, outcome in batch.outcomes
        ]

    def _known(self, entries: Sequence[PreparedEntry]) -> _Known:
        ids = [prepared.entry.id for prepared in entries]
        texts = [prepared.identity for prepared in entries]
        return _Known(
            {row.entry_id: row.record_id for row in self._of(select(_s.entry_id, _s.record_id), _s.entry_id, ids)},
            {row.id: row.record_id for row in self._of(select(_f.id, _f.record_id), _f.id, ids)},
            {row.identity: row.record_id for row in self._of(select(_r.identity, _r.record_id), _r.identity, texts)},
        )

    def states(self, ids: Sequence[str]) -> dict[str, EmbeddingState]:
        found = self._of(select(_r.record_id, _r.embedding), _r.record_id, list(dict.fromkeys(ids)))
        return {row.record_id: EmbeddingState(row.embedding) for row in found}

    def _next_position(self) -> int:
        self._positions += 1
        return self._positions

    def _say_again(self, record: str, change: int) -> None:
        """What says nearly the same as a record that is said again is superseded by it from now on."""
        nearly = self._conn.execute(
            select(_l.newer).where(_l.owner == self._owner, _l.older == record, _l.near.is_(True))
        )
        for other in nearly.scalars().all():
            self._link(record, other, change, near=True)

    def _link(self, newer: str, older: str, change: int, *, near: bool) -> None:
        """Let `newer` supersede `older` from this change on."""
        where = and_(_l.owner == self._owner, _l.older == older, _l.newer == newer)
        self._conn.execute(delete(semantic_links).where(where))
        values = {"owner": self._owner, "older": older, "newer": newer, "change": change, "near": near}
        self._conn.execute(insert(semantic_links), values)
        self._touch([older], self._next())

    def _touch(self, records: Sequence[str], change: int) -> None:
        for record in records:
            self._conn.execute(
                update(semantic_records).where(_r.owner == self._owner, _r.record_id == record).values(change=change)
            )

    def _record_of(self, entry_or_record: str) -> str | None:
        found = self._conn.execute(
            select(_s.record_id).where(_s.owner == self._owner, _s.entry_id == entry_or_record)
        ).scalar()
        return found if found is None else str(found)

    # --- reading ----------------------------------------------------------------------------------------------

    def entries_of(self, ids: Sequence[str], limit: int) -> list[str]:
        asked = list(dict.fromkeys(ids))
        named = {row.entry_id: row.record_id for row in self._of(select(_s.entry_id, _s.record_id), _s.entry_id, asked)}
        found = [entry for entry in asked if entry in named]
        records = list(dict.fromkeys(named.values()))
        query = select(_s.entry_id).order_by(_s.change.desc()).limit(limit)
        return list(dict.fromkeys([*found, *(row.entry_id for row in self._of(query, _s.record_id, records))]))[:limit]

    def scan(self, after: int, limit: int) -> Changes:
        head = self.head()
        found = self._index_records(_r.position, after, limit)
        last = found[-1].position if found else after
        rows = self._index_rows(found, head.space, and_(_r.position > after, _r.position <= last))
        return Changes(head, rows, (), last, len(found) == limit)

    def changes(self, after: int, limit: int) -> Changes:
        head = self.head()
        if head.changes == after:
            return Changes(head, (), (), after, False)
        found = self._index_records(_r.change, after, limit)
        more = len(found) == limit
        last = found[-1].change if more else head.changes
        forgotten = self._conn.execute(
            select(_f.record_id).where(_f.owner == self._owner, _f.change > after, _f.change <= last)
        )
        gone = tuple(dict.fromkeys(forgotten.scalars()))
        rows = self._index_rows(found, head.space, and_(_r.change > after, _r.change <= last))
        return Changes(head, rows, gone, last, more)

    def _index_records(self, order: Any, after: int, limit: int) -> Sequence[Any]:
        query = select(*_INDEXED).where(_r.owner == self._owner, order > after).order_by(order).limit(limit)
        return self._conn.execute(query).all()

    def _index_rows(
        self, found: Sequence[Any], space: EmbeddingSpace | None, chosen: ColumnElement[bool]
    ) -> tuple[IndexRow, ...]:
        """What an index needs of the records found, which are the `chosen` ones."""
        if not found:
            return ()
        records = select(_r.record_id).where(_r.owner == self._owner, chosen)
        mentions: dict[str, list[Mention]] = defaultdict(list)
        for record, turn, change in self._beside(select(_s.record_id, _s.turn_id, _s.change), _s, records):
            mentions[record].append(Mention(turn, change))
        links: dict[str, list[Link]] = defaultdict(list)
        query = select(_l.older, _l.newer, _l.change, _l.near).where(_l.owner == self._owner, _l.older.in_(records))
        for older, newer, change, near in self._conn.execute(query.order_by(_l.change)).all():
            links[older].append(Link(newer, change, near))
        vectors: dict[str, list[bytes]] = defaultdict(list)
        if space is not None:
            own = and_(_v.embedder == space.embedder, _v.dimensions == space.dimensions)
            made = select(_v.record_id, _v.vector).where(own).order_by(_v.record_id, _v.part)
            for record, vector in self._beside(made, _v, records):
                vectors[record].append(vector)
        outdated = [row.record_id for row in found if row.terms_version != TERMS_VERSION]
        anew = {row.record_id: _terms(row) for row in self._of(select(semantic_records), _r.record_id, outdated)}
        return tuple(
            IndexRow(
                id=row.record_id,
                change=row.change,
                position=row.position,
                at=row.at,
                fact=row.kind == FACT,
                asks=row.asks,
                terms=anew.get(row.record_id, row.terms),
                embedding=EmbeddingState(row.embedding),
                vectors=tuple(vectors.get(row.record_id, ())),
                mentions=tuple(mentions.get(row.record_id, ())),
                superseded=tuple(links.get(row.record_id, ())),
            )
            for row in found
        )

    def _beside(self, query: Select[Any], columns: Any, records: Select[Any]) -> Sequence[Any]:
        """Rows of a table that belong to the records."""
        return self._conn.execute(query.where(columns.owner == self._owner, columns.record_id.in_(records))).all()

    def _of(self, query: Select[Any], column: Any, ids: Sequence[str]) -> Iterable[Any]:
        """Rows of this owner whose column is one of the ids."""
        query = query.where(column.table.c.owner == self._owner)
        for start in range(0, len(ids), _ID_BATCH):
            yield from self._conn.execute(query.where(column.in_(ids[start : start + _ID_BATCH]))).all()

    def read(self, ids: Sequence[str]) -> list[StoredRecord]:
        return self._records(list(self._of(select(semantic_records), _r.record_id, ids)))

    def page(self, before: int | None, limit: int) -> list[StoredRecord]:
        query = select(semantic_records).where(_r.owner == self._owner)
        if before is not None:
            query = query.where(_r.position < before)
        return self._records(self._conn.execute(query.order_by(_r.position.desc()).limit(limit)).all())

    def _records(self, rows: Sequence[Any]) -> list[StoredRecord]:
        ids = [row.record_id for row in rows]
        sources: dict[str, list[tuple[int, Source]]] = defaultdict(list)
        for row in self._of(select(semantic_sources).order_by(_s.change), _s.record_id, ids):
            place = Source(row.entry_id, row.at, row.turn_id, row.turn_number, row.effect_id)
            sources[row.record_id].append((row.change, place))
        supersedes: dict[str, list[str]] = defaultdict(list)
        for row in self._of(select(_l.newer, _l.older).order_by(_l.change), _l.newer, ids):
            supersedes[row.newer].append(row.older)
        links = self._links(ids)
        return [_stored(row, sources[row.record_id], supersedes[row.record_id], links[row.record_id]) for row in rows]

    def _links(self, ids: Sequence[str]) -> dict[str, list[Link]]:
        """What supersedes each of these records."""
        links: dict[str, list[Link]] = defaultdict(list)
        for row in self._of(select(semantic_links).order_by(_l.change), _l.older, ids):
            links[row.older].append(Link(row.newer, row.change, row.near))
        return links

    def stats(self) -> SemanticStats:
        head = self.head()
        counts = select(_r.embedding, func.count()).where(_r.owner == self._owner).group_by(_r.embedding)
        states: dict[str, int] = {row[0]: row[1] for row in self._conn.execute(counts)}
        said = select(func.max(_s.change)).where(_s.owner == _l.owner, _s.record_id == _l.older).scalar_subquery()
        in_force = select(_l.older, _l.near).where(_l.owner == self._owner, _l.change > said)
        nearly: dict[str, bool] = {}
        for row in self._conn.execute(in_force):
            nearly[row.older] = row.near and nearly.get(row.older, True)
        return SemanticStats(
            entries=self._count(semantic_sources),
            records=sum(states.values()),
            current=sum(states.values()) - len(nearly),
            near_duplicates=sum(nearly.values()),
            pending=states.get(EmbeddingState.PENDING.value, 0),
            failed=states.get(EmbeddingState.FAILED.value, 0),
            forgotten=self._conn.execute(
                select(func.count(func.distinct(_f.record_id))).where(_f.owner == self._owner)
            ).scalar_one(),
            space=head.space,
            bytes=0,
        )

    def _count(self, table: Any) -> int:
        query = select(func.count()).select_from(table).where(table.c.owner == self._owner)
        return int(self._conn.execute(query).scalar_one())

    # --- vectors ----------------------------------------------------------------------------------------------

    def unembedded(self, now: int, limit: int) -> list[Unembedded]:
        query = (
            select(semantic_records)
            .where(_r.owner == self._owner, _r.embedding != EmbeddingState.EMBEDDED.value, _r.retry_at <= now)
            .order_by(_r.position)
            .limit(limit)
        )
        return [_unembedded(row) for row in self._conn.execute(query)]

    def missing(self, space: EmbeddingSpace | None, after: int, limit: int) -> list[Unembedded]:
        query = select(semantic_records).where(_r.owner == self._owner, _r.position > after)
        if space is not None:
            query = query.where(~_has_vector(space))
        query = query.order_by(_r.position).limit(limit)
        return [_unembedded(row) for row in self._conn.execute(query)]

    def store(self, space: EmbeddingSpace, done: Sequence[Embedded]) -> None:
        head = self._lock()
        if head.space is None:
            self._save(embedder=space.embedder, dimensions=space.dimensions)
        searched = head.space in (None, space)
        ids = [item.id for item in done]
        there = {row.record_id for row in self._of(select(_r.record_id), _r.record_id, ids)}
        done = [item for item in done if item.id in there]
        if not done:
            return
        self._drop_vectors(space, [item.id for item in done])
        key = {"owner": self._owner, "embedder": space.embedder, "dimensions": space.dimensions}
        rows = [
            {**key, "record_id": item.id, "part": part, "vector": vector}
            for item in done
            for part, vector in enumerate(item.vectors)
        ]
        self._conn.execute(insert(semantic_vectors), rows)
        if searched:
            self._conn.execute(_EMBEDDED, [{"of": self._owner, "id": item.id, "n": self._next()} for item in done])
        for item in done:
            for older in item.same_as:
                if self._record_of(older) is not None:
                    self._link(item.id, older, self._next(), near=True)
        self._save()

    def _drop_vectors(self, space: EmbeddingSpace, records: Sequence[str]) -> None:
        mine = delete(semantic_vectors).where(
            _v.owner == self._owner, _v.embedder == space.embedder, _v.dimensions == space.dimensions
        )
        for start in range(0, len(records), _ID_BATCH):
            self._conn.execute(mine.where(_v.record_id.in_(records[start : start + _ID_BATCH])))

    def fail(self, ids: Sequence[str], error: str, now: int) -> None:
        self._lock()
        for row in list(self._of(select(_r.record_id, _r.attempts), _r.record_id, ids)):
            wait = min(MAX_RETRY_US, RETRY_US * 2 ** min(row.attempts, 20))
            values = {
                "embedding": EmbeddingState.FAILED.value,
                "error": error[:MAX_ERROR],
                "attempts": row.attempts + 1,
                "retry_at": now + wait,
                "change": self._next(),
            }
            self._update(row.record_id, values)
        self._save()

    def _update(self, record: str, values: dict[str, Any]) -> None:
        where = and_(_r.owner == self._owner, _r.record_id == record)
        self._conn.execute(update(semantic_records).where(where).values(values))

    def switch(self, space: EmbeddingSpace) -> bool:
        head = self._lock()
        if self.missing(space, 0, 1):
            return False
        other = ~and_(_v.embedder == space.embedder, _v.dimensions == space.dimensions)
        self._conn.execute(delete(semantic_vectors).where(_v.owner == self._owner, other))
        mine = update(semantic_records).where(_r.owner == self._owner)
        self._conn.execute(mine.values(embedding=EmbeddingState.EMBEDDED.value, error=None, attempts=0))
        self._save(embedder=space.embedder, dimensions=space.dimensions, generation=head.generation + 1)
        return True

    # --- deleting ---------------------------------------------------------------------------------------------

    def forget(self, ids: Sequence[str], by: str, at: int) -> list[str]:
        self._lock()
        gone: list[str] = []
        for wanted in dict.fromkeys(ids):
            record = self._record_of(wanted)
            if record is not None:
                self._forget(record, by, at)
                gone.append(record)
        self._save()
        return gone

    def _forget(self, record: str, by: str, at: int) -> None:
        change = self._next()
        mine = (_s.owner == self._owner, _s.record_id == record)
        entries = self._conn.execute(select(_s.entry_id).where(*mine)).scalars().all()
        note = {"owner": self._owner, "record_id": record, "change": change, "at": at, "by": by}
        self._conn.execute(insert(semantic_forgotten), [{**note, "id": entry} for entry in entries])
        older = self._conn.execute(select(_l.older).where(_l.owner == self._owner, _l.newer == record)).scalars().all()
        self._conn.execute(
            delete(semantic_links).where(_l.owner == self._owner, (_l.newer == record) | (_l.older == record))
        )
        self._touch(older, self._next())
        self._conn.execute(delete(semantic_vectors).where(_v.owner == self._owner, _v.record_id == record))
        self._conn.execute(delete(semantic_sources).where(*mine))
        self._conn.execute(delete(semantic_records).where(_r.owner == self._owner, _r.record_id == record))

    def clear(self) -> None:
        head = self._lock()
        for table in SEMANTIC_TABLES[1:]:
            self._conn.execute(delete(table).where(table.c.owner == self._owner))
        self._save(generation=head.generation + 1, embedder=None, dimensions=None)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is there of a batch: records by entry, records that were forgotten by entry, records by text."""

    entries: dict[str, str]
    forgotten: dict[str, str]
    texts: dict[str, str]


class _Batch:
    """Entries on their way into the tables."""

    def __init__(self, owner: str, known: _Known) -> None:
        self._owner = owner
        self._known = known
        self.records: list[dict[str, Any]] = []
        self.sources: list[dict[str, Any]] = []
        self.said_again: dict[str, int] = {}
        self.supersedes: list[tuple[str, str, int]] = []
        self.outcomes: list[tuple[str, str, AddOutcome]] = []

    def take(self, prepared: PreparedEntry, change: Callable[[], int], position: Callable[[], int]) -> None:
        entry, known = prepared.entry, self._known
        if entry.id in known.entries or entry.id in known.forgotten:
            outcome = AddOutcome.KNOWN if entry.id in known.entries else AddOutcome.FORGOTTEN
            self.outcomes.append((entry.id, known.entries.get(entry.id) or known.forgotten[entry.id], outcome))
            return
        record = known.texts.get(prepared.identity)
        number = change()
        if record is None:
            self.outcomes.append((entry.id, entry.id, AddOutcome.STORED))
            self.records.append(_new_record(self._owner, prepared, number, position()))
            record = known.texts[prepared.identity] = entry.id
        else:
            self.outcomes.append((entry.id, record, AddOutcome.DUPLICATE))
            self.said_again[record] = number
        known.entries[entry.id] = record
        self.sources.append(
            {
                "owner": self._owner,
                "entry_id": entry.id,
                "record_id": record,
                "change": number,
                "at": entry.at,
                "turn_id": entry.turn_id,
                "turn_number": entry.turn_number,
                "effect_id": entry.effect_id,
            }
        )
        self.supersedes += [(record, older, change()) for older in entry.supersedes]


def _new_record(owner: str, prepared: PreparedEntry, change: int, position: int) -> dict[str, Any]:
    entry = prepared.entry
    return {
        "owner": owner,
        "record_id": entry.id,
        "position": position,
        "change": change,
        "identity": prepared.identity,
        "text": entry.text,
        "kind": entry.kind,
        "speaker": entry.speaker,
        "captions": json.dumps(entry.captions).encode(),
        "at": entry.at,
        "asks": asks(entry.text),
        "terms": prepared.terms,
        "terms_version": TERMS_VERSION,
        "embedding": EmbeddingState.PENDING.value,
        "attempts": 0,
        "retry_at": 0,
    }


def _head(row: Any) -> Head:
    space = None if row.embedder is None else EmbeddingSpace(row.embedder, row.dimensions)
    return Head(row.changes, row.generation, space)


def _stored(
    row: Any, sources: Sequence[tuple[int, Source]], supersedes: Sequence[str], links: Sequence[Link]
) -> StoredRecord:
    record = MemoryRecord(
        id=row.record_id,
        position=row.position,
        text=row.text,
        kind=row.kind,
        at=max((source.at for _, source in sources), default=row.at),
        speaker=row.speaker,
        captions=tuple(json.loads(row.captions)),
        sources=tuple(source for _, source in sources),
        supersedes=tuple(supersedes),
        superseded_by=None,
        embedding=EmbeddingState(row.embedding),
        embedding_error=row.error,
    )
    return StoredRecord(record, tuple(change for change, _ in sources), tuple(links))


def _has_vector(space: EmbeddingSpace) -> Any:
    return exists().where(
        _v.owner == _r.owner,
        _v.record_id == _r.record_id,
        _v.embedder == space.embedder,
        _v.dimensions == space.dimensions,
    )


def _unembedded(row: Any) -> Unembedded:
    captions = tuple(json.loads(row.captions))
    place = (row.record_id, row.position)
    return Unembedded(*place, row.text, row.kind, row.at, row.speaker, captions, row.attempts)


def _terms(row: Any) -> str:
    return terms_of(row.text, at=row.at, speaker=row.speaker, captions=json.loads(row.captions))
