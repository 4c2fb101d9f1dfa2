"""Long-term memory as rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, delete, func, or_, select, update

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import StorageUnavailable, VersionConflict
from milepost.ports.longterm import Change, Namespace, Stored, Vector, Write
from milepost.storage.columns import Identifier
from milepost.storage.statements import PerDialect, insert_ignore
from milepost.storage.tables import long_term_namespaces as spaces
from milepost.storage.tables import long_term_records as records
from milepost.storage.tables import long_term_vectors as vectors

MAX_TRIES = 20
"""Of making a namespace, while other processes make others."""

_ADD_NAMESPACE = insert_ignore(spaces)
_LAST_ID = select(func.max(spaces.c.namespace_id))
_BY_NAME = select(spaces).where(spaces.c.name == bindparam("name"))
_LOCKED = _BY_NAME.with_for_update()
_NAMESPACES = (
    select(spaces)
    .where(spaces.c.name > bindparam("after"))
    .order_by(spaces.c.name)
    .limit(bindparam("page", type_=BigInteger))
)
_COUNT = (
    update(spaces)
    .where(spaces.c.namespace_id == bindparam("ns"))
    .values(changes=bindparam("to"), records=spaces.c.records + bindparam("more"))
)
_SET_SPACE = (
    update(spaces)
    .where(spaces.c.namespace_id == bindparam("ns"))
    .values(embedder=bindparam("of"), dimensions=bindparam("size"))
)

_IN_NAMESPACE = records.c.namespace_id == bindparam("ns")
_THIS = and_(_IN_NAMESPACE, records.c.key == bindparam("this_key"))
_OWN_VECTOR = and_(
    vectors.c.namespace_id == records.c.namespace_id,
    vectors.c.key == records.c.key,
    vectors.c.embedder == bindparam("of", type_=Identifier),
    vectors.c.dimensions == bindparam("size", type_=BigInteger),
)
_RECORDS = records.outerjoin(vectors, _OWN_VECTOR)
_EMBEDDED = vectors.c.key.is_not(None).label("embedded")
_LIVE = select(records, _EMBEDDED).select_from(_RECORDS).where(_IN_NAMESPACE, records.c.document.is_not(None))
_GET = _LIVE.where(records.c.key.in_(bindparam("keys", expanding=True)))
_PAGE = (
    _LIVE.where(records.c.key > bindparam("after")).order_by(records.c.key).limit(bindparam("page", type_=BigInteger))
)
_LACKING = _PAGE.where(vectors.c.key.is_(None))
_KNOWN = select(
    records.c.key,
    records.c.version,
    records.c.change,
    records.c.created_at,
    records.c.effect_id,
    records.c.expires_at,
    records.c.document.is_not(None).label("live"),
).where(_IN_NAMESPACE, records.c.key.in_(bindparam("keys", expanding=True)))
_CHANGES = (
    select(records.c.change, records.c.key, records.c.expires_at, records.c.facts, vectors.c.data, vectors.c.checksum)
    .select_from(_RECORDS)
    .where(_IN_NAMESPACE, records.c.change > bindparam("after"))
    .order_by(records.c.change)
    .limit(bindparam("page", type_=BigInteger))
)
_VECTORS = select(vectors).where(
    vectors.c.namespace_id == bindparam("ns"),
    vectors.c.key.in_(bindparam("keys", expanding=True)),
    vectors.c.embedder == bindparam("of"),
    vectors.c.dimensions == bindparam("size"),
)
_MOVE = update(records).where(_THIS).values(change=bindparam("to"))
_ERASE = (
    update(records)
    .where(_THIS)
    .values(
        version=records.c.version + 1,
        change=bindparam("to"),
        document=None,
        facts=None,
        expires_at=None,
        updated_at=bindparam("now"),
    )
)
_DROP_VECTORS = delete(vectors).where(
    vectors.c.namespace_id == bindparam("ns"), vectors.c.key.in_(bindparam("keys", expanding=True))
)
_OTHERS = (
    select(vectors.c.key, vectors.c.embedder, vectors.c.dimensions)
    .where(
        vectors.c.namespace_id == bindparam("ns"),
        or_(vectors.c.embedder != bindparam("of"), vectors.c.dimensions != bindparam("size")),
    )
    .limit(bindparam("page", type_=BigInteger))
)
_DROP_VECTOR = delete(vectors).where(
    vectors.c.namespace_id == bindparam("ns"),
    vectors.c.key == bindparam("this_key"),
    vectors.c.embedder == bindparam("of"),
    vectors.c.dimensions == bindparam("size"),
)
_EXPIRED = (
    select(spaces.c.name, records.c.key)
    .join(spaces, spaces.c.namespace_id == records.c.namespace_id)
    .where(records.c.expires_at <= bindparam("now"), records.c.document.is_not(None))
    .order_by(records.c.expires_at, spaces.c.name, records.c.key)
    .limit(bindparam("page", type_=BigInteger))
)
_DELETED = (
    select(records.c.namespace_id, records.c.key, records.c.change)
    .where(records.c.document.is_(None), records.c.updated_at < bindparam("before"))
    .order_by(records.c.updated_at)
    .limit(bindparam("page", type_=BigInteger))
)
_REMOVE = delete(records).where(_THIS)
_FORGOTTEN = (
    update(spaces)
    .where(spaces.c.namespace_id == bindparam("ns"), spaces.c.forgotten < bindparam("change"))
    .values(forgotten=bindparam("change"))
)


def _upsert(table: Any, *key: str) -> PerDialect:
    def build(statement: Any) -> Any:
        given = {name.name: statement.excluded[name.name] for name in table.c if name.name not in key}
        return statement.on_conflict_do_update(index_elements=list(key), set_=given)

    return PerDialect(table, build)


_PUT_RECORD = _upsert(records, "namespace_id", "key")
_PUT_VECTOR = _upsert(vectors, "namespace_id", "key", "embedder", "dimensions")


class SqlLongTerm:
    """`ports.longterm_rows.LongTermRows`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def namespaces(self, after: str, limit: int) -> list[Namespace]:
        return [_namespace(row) for row in self._conn.execute(_NAMESPACES, {"after": after, "page": limit})]

    def namespace(self, name: str) -> Namespace | None:
        row = self._conn.execute(_BY_NAME, {"name": name}).first()
        return None if row is None else _namespace(row)

    def get(self, namespace: str, keys: Sequence[str]) -> dict[str, Stored]:
        return {row.key: _stored(row) for row in self._rows(_GET, namespace, keys=list(keys))}

    def page(self, namespace: str, after: str, limit: int) -> list[Stored]:
        return [_stored(row) for row in self._rows(_PAGE, namespace, after=after, page=limit)]

    def changes(self, namespace: str, after: int, limit: int) -> list[Change]:
        known = self.namespace(namespace)
        rows = self._rows(_CHANGES, namespace, after=after, page=limit)
        return [_change(row, known.space if known else None) for row in rows]

    def vectors(self, namespace: str, keys: Sequence[str]) -> dict[str, Vector]:
        return {row.key: _vector(row) for row in self._rows(_VECTORS, namespace, keys=list(keys))}

    def lacking(self, namespace: str, space: EmbeddingSpace, after: str, limit: int) -> list[Stored]:
        return [_stored(row) for row in self._rows(_LACKING, namespace, space, after=after, page=limit)]

    def _rows(self, query: Any, name: str, space: EmbeddingSpace | None = None, **params: Any) -> Iterable[Any]:
        row = self._conn.execute(_BY_NAME, {"name": name}).first()
        if row is None:
            return ()
        of = (row.embedder, row.dimensions) if space is None else (space.embedder, space.dimensions)
        return self._conn.execute(query, {"ns": row.namespace_id, "of": of[0], "size": of[1], **params})

    # --- writing ------------------------------------------------------------------------------------------------

    def put(self, namespace: str, writes: Sequence[Write]) -> list[Stored]:
        place = self._open(namespace, writes[0].at if writes else 0)
        keys = [write.key for write in writes]
        known = {row.key: row for row in self._conn.execute(_KNOWN, {"ns": place.namespace_id, "keys": keys})}
        fresh = [write for write in writes if not _made(write, known.get(write.key))]
        space = place.space or next((write.vector.space for write in fresh if write.vector), None)
        if space != place.space and space is not None:
            self._set_space(place.namespace_id, space)
        rows, change = [], place.changes
        for write in fresh:
            change += 1
            rows.append(_row(place.namespace_id, write, known.get(write.key), change))
        if rows:
            more = sum(1 for write in fresh if not getattr(known.get(write.key), "live", False))
            self._conn.execute(_PUT_RECORD.on(self._conn), rows)
            self._put_vectors(place.namespace_id, [(w.key, w.vector) for w in fresh], space, keys)
            self._conn.execute(_COUNT, {"ns": place.namespace_id, "to": change, "more": more})
        found = self.get(namespace, keys)
        return [found[key] for key in keys]

    def _put_vectors(
        self,
        namespace_id: int,
        given: Sequence[tuple[str, Vector | None]],
        space: EmbeddingSpace | None,
        stale: Sequence[str] = (),
    ) -> None:
        if stale:
            self._conn.execute(_DROP_VECTORS, {"ns": namespace_id, "keys": [key for key, _ in given]})
        rows = [
            {
                "namespace_id": namespace_id,
                "key": key,
                "embedder": vector.space.embedder,
                "dimensions": vector.space.dimensions,
                "data": vector.data,
                "checksum": vector.checksum,
            }
            for key, vector in given
            if vector is not None and vector.space == space
        ]
        if rows:
            self._conn.execute(_PUT_VECTOR.on(self._conn), rows)

    def delete(self, namespace: str, key: str, expected: int | None, at: int) -> bool:
        place = self._lock(namespace)
        if place is None:
            return _expect(key, None, expected)
        row = self._conn.execute(_KNOWN, {"ns": place.namespace_id, "keys": [key]}).first()
        live = row is not None and row.live
        _expect(key, row.version if row is not None and live else None, expected)
        if not live:
            return False
        change = place.changes + 1
        self._conn.execute(_ERASE, {"ns": place.namespace_id, "this_key": key, "to": change, "now": at})
        self._conn.execute(_DROP_VECTORS, {"ns": place.namespace_id, "keys": [key]})
        self._conn.execute(_COUNT, {"ns": place.namespace_id, "to": change, "more": -1})
        return True

    def put_vectors(self, namespace: str, given: Sequence[tuple[str, int, Vector]]) -> int:
        place = self._lock(namespace)
        if place is None or not given:
            return 0
        keys = [key for key, _, _ in given]
        known = {row.key: row for row in self._conn.execute(_KNOWN, {"ns": place.namespace_id, "keys": keys})}
        kept = [
            (key, vector)
            for key, change, vector in given
            if key in known and known[key].live and known[key].change == change
        ]
        space = given[0][2].space
        if place.space is None:
            self._set_space(place.namespace_id, space)
        self._put_vectors(place.namespace_id, kept, space)
        if kept and place.space in (None, space):
            moved = [
                {"ns": place.namespace_id, "this_key": key, "to": place.changes + number}
                for number, (key, _) in enumerate(kept, 1)
            ]
            self._conn.execute(_MOVE, moved)
            self._conn.execute(_COUNT, {"ns": place.namespace_id, "to": place.changes + len(kept), "more": 0})
        return len(kept)

    def switch(self, namespace: str, space: EmbeddingSpace, changes: int) -> bool:
        place = self._lock(namespace)
        if place is None or place.changes != changes:
            return False
        self._set_space(place.namespace_id, space)
        return True

    def drop_others(self, namespace: str, limit: int) -> int:
        place = self._lock(namespace)
        if place is None or place.space is None:
            return 0
        of, size = place.space.embedder, place.space.dimensions
        rows = self._conn.execute(_OTHERS, {"ns": place.namespace_id, "of": of, "size": size, "page": limit}).all()
        if rows:
            gone = [
                {"ns": place.namespace_id, "this_key": row.key, "of": row.embedder, "size": row.dimensions}
                for row in rows
            ]
            self._conn.execute(_DROP_VECTOR, gone)
        return len(rows)

    def expired(self, now: int, limit: int) -> list[tuple[str, str]]:
        return [(row.name, row.key) for row in self._conn.execute(_EXPIRED, {"now": now, "page": limit})]

    def forget(self, before: int, limit: int) -> int:
        rows = self._conn.execute(_DELETED, {"before": before, "page": limit}).all()
        for row in rows:
            self._conn.execute(_FORGOTTEN, {"ns": row.namespace_id, "change": row.change})
            self._conn.execute(_REMOVE, {"ns": row.namespace_id, "this_key": row.key})
        return len(rows)

    # --- namespaces ---------------------------------------------------------------------------------------------

    def _open(self, name: str, at: int) -> _Place:
        for _ in range(MAX_TRIES):
            place = self._lock(name)
            if place is not None:
                return place
            row = {"name": name, "changes": 0, "forgotten": 0, "records": 0, "created_at": at}
            # Not the database's own numbers: a restored backup would begin them anew.
            number = (self._conn.execute(_LAST_ID).scalar() or 0) + 1
            self._conn.execute(_ADD_NAMESPACE.on(self._conn), {**row, "namespace_id": number})
        raise StorageUnavailable(f"The namespace '{name}' could not be made.", fix="Try again.")

    def _lock(self, name: str) -> _Place | None:
        """The namespace, locked until the transaction ends: changes become visible in the order of their numbers."""
        row = self._conn.execute(_LOCKED, {"name": name}).first()
        return None if row is None else _Place(row)

    def _set_space(self, namespace_id: int, space: EmbeddingSpace) -> None:
        self._conn.execute(_SET_SPACE, {"ns": namespace_id, "of": space.embedder, "size": space.dimensions})


class _Place:
    def __init__(self, row: Any) -> None:
        self.namespace_id: int = row.namespace_id
        self.changes: int = row.changes
        self.space = _space(row)


def _space(row: Any) -> EmbeddingSpace | None:
    return None if row.embedder is None else EmbeddingSpace(row.embedder, row.dimensions)


def _namespace(row: Any) -> Namespace:
    return Namespace(row.name, _space(row), row.changes, row.forgotten, row.records, row.created_at)


def _made(write: Write, known: Any) -> bool:
    """Whether the write has been made already. Raises VersionConflict."""
    if known is not None and known.live and write.effect_id is not None and known.effect_id == write.effect_id:
        return True
    _expect(write.key, known.version if _is_there(known, write.at) else None, write.expected)
    return False


def _is_there(known: Any, at: int) -> bool:
    """Whether a reader finds it at that time: not one that was deleted, or whose time is over."""
    return known is not None and bool(known.live) and (known.expires_at is None or known.expires_at > at)


def _expect(key: str, version: int | None, expected: int | None) -> bool:
    """False. Raises VersionConflict if something is expected and not there."""
    if expected is not None and expected != (version or 0):
        there = "there is none" if version is None else f"it has version {version}"
        raise VersionConflict(
            f"The record '{key[:100]}' is not of version {expected}: {there}.",
            field="expected_version",
            fix="Read it, and write again what is to be there.",
        )
    return False


def _row(namespace_id: int, write: Write, known: Any, change: int) -> dict[str, Any]:
    return {
        "namespace_id": namespace_id,
        "key": write.key,
        "version": 1 if known is None else known.version + 1,
        "change": change,
        "document": write.document,
        "facts": write.facts,
        "created_at": known.created_at if _is_there(known, write.at) else write.at,
        "updated_at": write.at,
        "expires_at": write.expires_at,
        "by": write.by,
        "run_id": write.run_id,
        "effect_id": write.effect_id,
    }


def _stored(row: Any) -> Stored:
    return Stored(
        key=row.key,
        version=row.version,
        change=row.change,
        document=bytes(row.document),
        facts=bytes(row.facts),
        created_at=row.created_at,
        updated_at=row.updated_at,
        expires_at=row.expires_at,
        by=row.by,
        run_id=row.run_id,
        effect_id=row.effect_id,
        embedded=bool(row.embedded),
    )


def _vector(row: Any) -> Vector:
    return Vector(EmbeddingSpace(row.embedder, row.dimensions), bytes(row.data), row.checksum)


def _change(row: Any, space: EmbeddingSpace | None) -> Change:
    vector = None if row.data is None or space is None else Vector(space, bytes(row.data), row.checksum)
    return Change(row.change, row.key, row.expires_at, None if row.facts is None else bytes(row.facts), vector)
