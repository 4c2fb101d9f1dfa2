"""Streams and their events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, bindparam, cast, insert, literal_column, null, select, union_all, update
from sqlalchemy.types import BigInteger, LargeBinary, Text

from milepost.domain.errors import InvalidInput, LedgerCorrupt, TurnNotRunning
from milepost.domain.events import EVENTS_BY_KIND, LATE_EVENTS, Event, StreamKind
from milepost.domain.turns import TurnState
from milepost.ledger.chain import GENESIS, StoredEvent, event_hash
from milepost.ledger.codec import encode
from milepost.ports.ledger import NewEvent
from milepost.storage.columns import check_identifier
from milepost.storage.search import SqlSearchIndex
from milepost.storage.shared import SharedPayloads
from milepost.storage.statements import Prepared, insert_ignore
from milepost.storage.tables import events, streams, turns

MAX_PAGE = 10_000
MAX_TURNS = 200
MAX_APPEND = 4096
"""Events of one call; their keys must fit one statement's parameters."""
_NO_END = 2**63 - 1

_HEAD, _LAST, _KEY, _ENDED = range(4)
_ADD_STREAM = insert_ignore(streams)


@lru_cache(maxsize=64)
def _look(keys: int, turn_ids: int) -> Prepared:
    """Lock the stream; head, the event it names, known ones of `keys` event keys, ended ones of `turn_ids` turns.

    Plain parameters instead of an expanding one let the text be compiled once.
    """
    head = (
        select(streams.c.kind, streams.c.head_seq, streams.c.head_hash)
        .where(streams.c.stream_id == bindparam("stream"))
        .with_for_update(key_share=True)
        .cte("head")
    )
    last = select(head.c.head_seq).scalar_subquery()
    this = events.c.stream_id == bindparam("stream")
    known = events.c.event_key.in_([bindparam(f"key{n}") for n in range(keys)])
    named = turns.c.turn_id.in_([bindparam(f"turn{n}") for n in range(turn_ids)])
    ended = turns.c.state != TurnState.RUNNING.value
    no_name, no_seq, no_hash = cast(null(), Text), cast(null(), BigInteger), cast(null(), LargeBinary)
    parts = [
        select(literal_column(str(_HEAD)), head.c.kind, head.c.head_seq, head.c.head_hash),
        select(literal_column(str(_LAST)), no_name, events.c.seq, no_hash).where(this, events.c.seq == last),
        select(literal_column(str(_KEY)), events.c.event_key, events.c.seq, no_hash).where(this, known),
    ]
    if turn_ids:
        parts.append(select(literal_column(str(_ENDED)), turns.c.turn_id, no_seq, no_hash).where(named, ended))
    return Prepared(union_all(*parts))


_INSERT = Prepared(insert(events))
_SET_HEAD = Prepared(
    update(streams)
    .where(streams.c.stream_id == bindparam("stream"))
    .values(head_seq=bindparam("seq"), head_hash=bindparam("head"))
)
_GET_HEAD = select(streams.c.head_seq, streams.c.head_hash).where(streams.c.stream_id == bindparam("stream"))
_COLUMNS = (
    events.c.stream_id,
    events.c.seq,
    events.c.event_key,
    events.c.type,
    events.c.version,
    events.c.at,
    events.c.turn_id,
    events.c.payload,
    events.c.prev_hash,
    events.c.hash,
)
_READ = (
    select(*_COLUMNS)
    .where(
        events.c.stream_id == bindparam("stream"),
        events.c.seq > bindparam("after"),
        events.c.seq < bindparam("before"),
    )
    .order_by(events.c.seq)
    .limit(bindparam("page", type_=BigInteger))
)
_READ_TURN = (
    select(*_COLUMNS)
    .where(events.c.turn_id == bindparam("turn"), events.c.stream_id == bindparam("stream"))
    .order_by(events.c.seq)
)
_FIND = select(*_COLUMNS).where(events.c.stream_id == bindparam("stream"), events.c.event_key == bindparam("key"))
_READ_TURNS = (
    select(*_COLUMNS)
    # Without the stream, which would let SQLite walk the whole of it instead of looking up the turns.
    .where(
        events.c.turn_id.in_(bindparam("turns", expanding=True)),
        events.c.type.in_(bindparam("types", expanding=True)),
    )
    .order_by(events.c.seq)
)
_READ_TURN_TYPES = _READ_TURN.where(events.c.type.in_(bindparam("types", expanding=True)))


class SqlEventLog:
    """`ports.ledger.EventLog`. Appending feeds the search index, and wakes the stream's readers after the commit."""

    def __init__(self, conn: Connection, notify: Callable[[str], None], index: SqlSearchIndex) -> None:
        self._conn = conn
        self._notify = notify
        self._index = index
        self._shared = SharedPayloads(conn)

    def append(self, stream_id: str, kind: StreamKind, new: Sequence[NewEvent], at: int) -> list[int]:
        if not new:
            return []
        if len(new) > MAX_APPEND:
            raise InvalidInput(f"{len(new)} events at once are too many; at most {MAX_APPEND} are accepted.")
        _check(stream_id, kind, new)
        seq, head, known, ended = self._look_up(stream_id, kind, new)
        rows: list[dict[str, Any]] = []
        added: list[tuple[int, int, str | None, Event]] = []
        for item in new:
            if item.key in known:
                continue
            if item.turn_id in ended and not isinstance(item.event, LATE_EVENTS):
                raise TurnNotRunning(f"Turn {item.turn_id} has ended; '{item.event.TYPE}' cannot be added to it.")
            seq += 1
            when = at if item.at is None else item.at
            row = _row(stream_id, seq, item, when, head)
            head = row["hash"]
            known[item.key] = seq
            row["payload"] = self._shared.packed(row["type"], item.turn_id, row["payload"])
            rows.append(row)
            added.append((seq, when, item.turn_id, item.event))
        if rows:
            _INSERT.run_many(self._conn, rows)
            _SET_HEAD.run(self._conn, {"stream": stream_id, "seq": seq, "head": head})
            if kind is StreamKind.SESSION:
                self._index.add(stream_id, added)
            self._notify(stream_id)
        return [known[item.key] for item in new]

    def _look_up(
        self, stream_id: str, kind: StreamKind, new: Sequence[NewEvent]
    ) -> tuple[int, bytes, dict[str, int], set[str]]:
        """Lock the stream, made if missing; return head seq, head hash, seq by known key, ended turns."""
        keys = _padded({item.key for item in new})
        turn_ids = _padded({item.turn_id for item in new if item.turn_id is not None})
        params = {"stream": stream_id}
        params.update((f"key{n}", key) for n, key in enumerate(keys))
        params.update((f"turn{n}", turn_id) for n, turn_id in enumerate(turn_ids))
        look = _look(len(keys), len(turn_ids))
        for _ in range(3):
            found: dict[int, list[Any]] = {_HEAD: [], _LAST: [], _KEY: [], _ENDED: []}
            for what, *values in look.all(self._conn, params):
                found[what].append(values)
            if not found[_HEAD]:
                self._add_stream(stream_id, kind)
                continue
            ((found_kind, head_seq, head_hash),) = found[_HEAD]
            if found_kind != kind.value:
                raise InvalidInput(f"Stream {stream_id} is of kind '{found_kind}', not '{kind.value}'.")
            # On PostgreSQL a lock that had to be waited for gives the newest head, while the rest of the statement is
            # older and does not know the head's event. With the lock held, the next look is of one time.
            if found[_LAST] or head_seq == 0:
                known = {name: seq for name, seq, _ in found[_KEY]}
                return head_seq, head_hash, known, {name for name, _, _ in found[_ENDED]}
        raise LedgerCorrupt(f"Stream {stream_id}: the event that its head names (seq {head_seq}) is missing.")

    def _add_stream(self, stream_id: str, kind: StreamKind) -> None:
        row = {"stream_id": stream_id, "kind": kind.value, "head_seq": 0, "head_hash": GENESIS}
        self._conn.execute(_ADD_STREAM.on(self._conn), row)

    def read(
        self, stream_id: str, *, after: int = 0, before: int | None = None, limit: int = 1000
    ) -> list[StoredEvent]:
        rows = self._conn.execute(
            _READ,
            {
                "stream": stream_id,
                "after": after,
                "before": _NO_END if before is None else before,
                "page": max(0, min(limit, MAX_PAGE)),
            },
        )
        return [self._stored(row) for row in rows]

    def read_turn(self, stream_id: str, turn_id: str, *, types: Sequence[str] = ()) -> list[StoredEvent]:
        params: dict[str, Any] = {"stream": stream_id, "turn": turn_id}
        if types:
            rows = self._conn.execute(_READ_TURN_TYPES, {**params, "types": list(types)})
        else:
            rows = self._conn.execute(_READ_TURN, params)
        return [self._stored(row) for row in rows]

    def find(self, stream_id: str, key: str) -> StoredEvent | None:
        row = self._conn.execute(_FIND, {"stream": stream_id, "key": key}).first()
        return None if row is None else self._stored(row)

    def read_turns(self, stream_id: str, turn_ids: Sequence[str], *, types: Sequence[str]) -> list[StoredEvent]:
        if not turn_ids:
            return []
        if len(turn_ids) > MAX_TURNS:
            raise InvalidInput(f"Events of {len(turn_ids)} turns at once are too many; at most {MAX_TURNS}.")
        params = {"turns": list(turn_ids), "types": list(types)}
        rows = self._conn.execute(_READ_TURNS, params)
        return [self._stored(row) for row in rows if row.stream_id == stream_id]

    def head(self, stream_id: str) -> tuple[int, bytes]:
        row = self._conn.execute(_GET_HEAD, {"stream": stream_id}).first()
        return (0, GENESIS) if row is None else (row.head_seq, row.head_hash)

    def _stored(self, row: Any) -> StoredEvent:
        stored = StoredEvent(*row)
        payload = self._shared.whole(stored.type, stored.payload)
        return stored if payload is stored.payload else replace(stored, payload=payload)


def _padded(values: set[str]) -> list[str]:
    """The values, the first one repeated up to a power of four, so that few statements serve all numbers."""
    found = list(values)
    size = 1
    while size < len(found):
        size *= 4
    return found + found[:1] * (size - len(found)) if found else found


def _check(stream_id: str, kind: StreamKind, new: Sequence[NewEvent]) -> None:
    check_identifier(stream_id)
    for item in new:
        if not isinstance(item.event, EVENTS_BY_KIND[kind]):
            raise InvalidInput(f"Event '{item.event.TYPE}' does not belong to a stream of kind '{kind.value}'.")
        check_identifier(item.key)
        if item.turn_id is not None:
            check_identifier(item.turn_id)


def _row(stream_id: str, seq: int, item: NewEvent, at: int, prev: bytes) -> dict[str, Any]:
    payload = encode(item.event)
    type_, version = item.event.TYPE, item.event.VERSION
    return {
        "stream_id": stream_id,
        "seq": seq,
        "event_key": item.key,
        "type": type_,
        "version": version,
        "at": at,
        "turn_id": item.turn_id,
        "payload": payload,
        "prev_hash": prev,
        "hash": event_hash(prev, stream_id, seq, item.key, type_, version, at, item.turn_id, payload),
    }
