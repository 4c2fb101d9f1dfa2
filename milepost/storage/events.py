"""Streams and their events."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    ScalarSelect,
    bindparam,
    cast,
    insert,
    literal_column,
    null,
    select,
    union_all,
    update,
)
from sqlalchemy.types import BigInteger, LargeBinary, Text

from milepost.domain.errors import InvalidInput, LedgerCorrupt, TurnNotRunning
from milepost.domain.events import EVENTS_BY_KIND, LATE_EVENTS, Event, StreamKind
from milepost.domain.turns import TurnState
from milepost.ledger.chain import GENESIS, StoredEvent, event_hash
from milepost.ledger.codec import encode
from milepost.ports.ledger import NewEvent
from milepost.storage.bodies import Bodies, body, opened
from milepost.storage.columns import check_identifier
from milepost.storage.search import SqlSearchIndex
from milepost.storage.shared import SharedPayloads
from milepost.storage.statements import Prepared, insert_ignore
from milepost.storage.tables import MOVES, events, identifiers, streams, turns

V = TypeVar("V", str, bytes)

MAX_PAGE = 10_000
MAX_TURNS = 200
MAX_APPEND = 4096
"""Events of one call; their keys must fit one statement's parameters."""
_NO_END = 2**63 - 1

_HEAD, _LAST, _KEY, _ENDED, _NUMBER = range(5)
_ADD_STREAM = insert_ignore(streams)
_ADD_NAME = insert_ignore(identifiers)
_NAMED = select(identifiers.c.number).where(identifiers.c.name == bindparam("of_name"))


def _number(parameter: str) -> ScalarSelect[int]:
    """The number of the id that this parameter has."""
    return select(identifiers.c.number).where(identifiers.c.name == bindparam(parameter)).scalar_subquery()


@lru_cache(maxsize=64)
def _look(keys: int, turn_ids: int) -> Prepared:
    """Lock the stream; head, the event it names, known ones of `keys` keys, ended ones of `turn_ids` turns, numbers.

    Plain parameters instead of an expanding one let the text be compiled once.
    """
    head = (
        select(streams.c.kind, streams.c.head_seq, streams.c.head_hash)
        .where(streams.c.stream_id == bindparam("stream"))
        .with_for_update(key_share=True)
        .cte("head")
    )
    last = select(head.c.head_seq).scalar_subquery()
    this = events.c.stream == _number("stream")
    known = events.c.key_digest.in_([bindparam(f"key{n}") for n in range(keys)])
    turn_names: list[Any] = [bindparam(f"turn{n}") for n in range(turn_ids)]
    ended = turns.c.state != TurnState.RUNNING.value
    no_name, no_seq, no_hash = cast(null(), Text), cast(null(), BigInteger), cast(null(), LargeBinary)
    parts = [
        select(literal_column(str(_HEAD)), head.c.kind, head.c.head_seq, head.c.head_hash),
        select(literal_column(str(_LAST)), no_name, events.c.seq, no_hash).where(this, events.c.seq == last),
        select(literal_column(str(_KEY)), no_name, events.c.seq, events.c.key_digest).where(this, known),
        select(literal_column(str(_NUMBER)), identifiers.c.name, identifiers.c.number, no_hash).where(
            identifiers.c.name.in_([bindparam("stream"), *turn_names])
        ),
    ]
    if turn_ids:
        of_turns = turns.c.turn_id.in_(turn_names)
        parts.append(select(literal_column(str(_ENDED)), turns.c.turn_id, no_seq, no_hash).where(of_turns, ended))
    return Prepared(union_all(*parts))


_INSERT = Prepared(insert(events))
_SET_HEAD = Prepared(
    update(streams)
    .where(streams.c.stream_id == bindparam("stream"))
    .values(head_seq=bindparam("seq"), head_hash=bindparam("head"))
)
_GET_HEAD = select(streams.c.head_seq, streams.c.head_hash).where(streams.c.stream_id == bindparam("stream"))
_OF_STREAM = events.c.stream == _number("stream")
_SELECT = select(
    events.c.stream,
    events.c.seq,
    events.c.type,
    events.c.version,
    events.c.at,
    events.c.key_digest,
    events.c.pieces,
    events.c.body,
    events.c.hash,
    identifiers.c.name.label("turn_id"),
).join_from(events, identifiers, identifiers.c.number == events.c.turn, isouter=True)
_READ = (
    _SELECT.where(_OF_STREAM, events.c.seq > bindparam("after"), events.c.seq < bindparam("before"))
    .order_by(events.c.seq)
    .limit(bindparam("page", type_=BigInteger))
)
_READ_TURN = _SELECT.where(events.c.turn == _number("turn"), _OF_STREAM, events.c.seq > bindparam("after")).order_by(
    events.c.seq
)
_NEWEST_MOVES = (
    # Written out, or no database finds that its index holds just these.
    _SELECT.where(_OF_STREAM, MOVES, events.c.seq < bindparam("before"))
    .order_by(events.c.seq.desc())
    .limit(bindparam("page", type_=BigInteger))
)
_FIND = _SELECT.where(_OF_STREAM, events.c.key_digest == bindparam("key"))
_NUMBERS = select(identifiers.c.number).where(identifiers.c.name.in_(bindparam("turns", expanding=True)))
_READ_TURNS = (
    _SELECT.add_columns(_number("stream").label("wanted"))
    # Without the stream, which would let SQLite walk the whole of it instead of looking up the turns.
    .where(events.c.turn.in_(_NUMBERS), events.c.type.in_(bindparam("types", expanding=True)))
    .order_by(events.c.seq)
)
_READ_TURN_TYPES = _READ_TURN.where(events.c.type.in_(bindparam("types", expanding=True)))


@dataclass(slots=True)
class _Found:
    """Of a locked stream: its head, seqs by known key digest, ended turns, numbers of ids."""

    seq: int
    hash: bytes
    known: dict[bytes, int]
    ended: set[str]
    numbers: dict[str, int]


class SqlEventLog:
    """`ports.ledger.EventLog`. Appending feeds the search index, and wakes the stream's readers after the commit."""

    def __init__(self, conn: Connection, notify: Callable[[str], None], index: SqlSearchIndex) -> None:
        self._conn = conn
        self._notify = notify
        self._index = index
        self._shared = SharedPayloads(conn)
        self._bodies = Bodies(conn)

    def append(self, stream_id: str, kind: StreamKind, new: Sequence[NewEvent], at: int) -> list[int]:
        if not new:
            return []
        if len(new) > MAX_APPEND:
            raise InvalidInput(f"{len(new)} events at once are too many; at most {MAX_APPEND} are accepted.")
        _check(stream_id, kind, new)
        digests = {item.key: key_digest(item.key) for item in new}
        found = self._look_up(stream_id, kind, new, digests)
        seq, head, known = found.seq, found.hash, found.known
        rows: list[dict[str, Any]] = []
        added: list[tuple[int, int, str | None, Event]] = []
        for item in new:
            digest = digests[item.key]
            if digest in known:
                continue
            if item.turn_id in found.ended and not isinstance(item.event, LATE_EVENTS):
                raise TurnNotRunning(f"Turn {item.turn_id} has ended; '{item.event.TYPE}' cannot be added to it.")
            seq += 1
            when = at if item.at is None else item.at
            row, payload = _row(stream_id, seq, item, when, head)
            kept = self._shared.packed(item.event.TYPE, item.turn_id, payload)
            stream = self._numbered(stream_id, found.numbers)
            turn = None if item.turn_id is None else self._numbered(item.turn_id, found.numbers)
            pieces, end = self._bodies.keep(stream, seq, body(item.key, kept, item.turn_id))
            own = {"stream": stream, "turn": turn, "key_digest": digest, "pieces": pieces, "body": end}
            rows.append({**row, **own})
            head = row["hash"]
            known[digest] = seq
            added.append((seq, when, item.turn_id, item.event))
        if rows:
            _INSERT.run_many(self._conn, rows)
            _SET_HEAD.run(self._conn, {"stream": stream_id, "seq": seq, "head": head})
            if kind is StreamKind.SESSION:
                self._index.add(stream_id, added)
            self._notify(stream_id)
        return [known[digests[item.key]] for item in new]

    def _look_up(
        self, stream_id: str, kind: StreamKind, new: Sequence[NewEvent], digests: Mapping[str, bytes]
    ) -> _Found:
        """Lock the stream, made if missing, and look at what appending to it needs to know."""
        keys = _padded({digests[item.key] for item in new})
        turn_ids = _padded({item.turn_id for item in new if item.turn_id is not None})
        params: dict[str, Any] = {"stream": stream_id}
        params.update((f"key{n}", key) for n, key in enumerate(keys))
        params.update((f"turn{n}", turn_id) for n, turn_id in enumerate(turn_ids))
        look = _look(len(keys), len(turn_ids))
        for _ in range(3):
            found: dict[int, list[Any]] = {_HEAD: [], _LAST: [], _KEY: [], _ENDED: [], _NUMBER: []}
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
                return _Found(
                    head_seq,
                    head_hash,
                    {bytes(digest): seq for _, seq, digest in found[_KEY]},
                    {name for name, _, _ in found[_ENDED]},
                    {name: number for name, number, _ in found[_NUMBER]},
                )
        raise LedgerCorrupt(f"Stream {stream_id}: the event that its head names (seq {head_seq}) is missing.")

    def _add_stream(self, stream_id: str, kind: StreamKind) -> None:
        row = {"stream_id": stream_id, "kind": kind.value, "head_seq": 0, "head_hash": GENESIS}
        self._conn.execute(_ADD_STREAM.on(self._conn), row)

    def _numbered(self, name: str, numbers: dict[str, int]) -> int:
        """The number of an id, given now if it has none."""
        if name not in numbers:
            self._conn.execute(_ADD_NAME.on(self._conn), {"name": name})
            numbers[name] = self._conn.execute(_NAMED, {"of_name": name}).scalar_one()
        return numbers[name]

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
        return self._stored(stream_id, rows)

    def read_turn(
        self, stream_id: str, turn_id: str, *, types: Sequence[str] = (), after: int = 0
    ) -> list[StoredEvent]:
        params: dict[str, Any] = {"stream": stream_id, "turn": turn_id, "after": after}
        if types:
            rows = self._conn.execute(_READ_TURN_TYPES, {**params, "types": list(types)})
        else:
            rows = self._conn.execute(_READ_TURN, params)
        return self._stored(stream_id, rows)

    def newest_moves(self, stream_id: str, *, before: int | None = None, limit: int) -> list[StoredEvent]:
        params = {"stream": stream_id, "before": _NO_END if before is None else before, "page": limit}
        return self._stored(stream_id, self._conn.execute(_NEWEST_MOVES, params))

    def find(self, stream_id: str, key: str) -> StoredEvent | None:
        digest = key_digest(check_identifier(key))
        found = self._stored(stream_id, self._conn.execute(_FIND, {"stream": stream_id, "key": digest}))
        return found[0] if found else None

    def read_turns(self, stream_id: str, turn_ids: Sequence[str], *, types: Sequence[str]) -> list[StoredEvent]:
        if not turn_ids:
            return []
        if len(turn_ids) > MAX_TURNS:
            raise InvalidInput(f"Events of {len(turn_ids)} turns at once are too many; at most {MAX_TURNS}.")
        params = {"stream": stream_id, "turns": list(turn_ids), "types": list(types)}
        rows = self._conn.execute(_READ_TURNS, params)
        return self._stored(stream_id, [row for row in rows if row.stream == row.wanted])

    def head(self, stream_id: str) -> tuple[int, bytes]:
        row = self._conn.execute(_GET_HEAD, {"stream": stream_id}).first()
        return (0, GENESIS) if row is None else (row.head_seq, row.head_hash)

    def _stored(self, stream_id: str, found: Iterable[Any]) -> list[StoredEvent]:
        """Events of one stream."""
        rows = list(found)
        if not rows:
            return []
        bodies = self._bodies.whole(rows[0].stream, rows)
        stored: list[StoredEvent] = []
        for row in rows:
            key, kept = opened(bodies[row.seq], row.turn_id)
            if key_digest(key) != bytes(row.key_digest):
                key = ""  # found by another key than its own: its hash does not hold
            payload = self._shared.whole(row.type, kept)
            stored.append(
                StoredEvent(
                    stream_id, row.seq, key, row.type, row.version, row.at, row.turn_id, payload, bytes(row.hash)
                )
            )
        return stored


def key_digest(key: str) -> bytes:
    """What makes a key unique in its stream: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(key.encode()).digest()[:16]


def _padded(values: set[V]) -> list[V]:
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


def _row(stream_id: str, seq: int, item: NewEvent, at: int, prev: bytes) -> tuple[dict[str, Any], bytes]:
    """What a row has beside its body and numbers, and the payload."""
    payload = encode(item.event)
    type_, version = item.event.TYPE, item.event.VERSION
    hash_ = event_hash(prev, stream_id, seq, item.key, type_, version, at, item.turn_id, payload)
    return {"seq": seq, "type": type_, "version": version, "at": at, "hash": hash_}, payload
