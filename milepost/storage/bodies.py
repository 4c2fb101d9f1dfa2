"""Bodies of events: the event's key and payload, packed together, since most of a key is said in the payload as well.

A body is the length of the key (two bytes, big-endian), the key and the payload as `shared` and `repeats` leave it,
packed beside the turn's id, which the row has. Of a long body the row has the end only; what comes before is kept in
pieces of which a page of SQLite holds just four, since rows of a few kilobytes would leave a third of its pages empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, select

from milepost.storage.packing import Unpackable, packed, unpacked
from milepost.storage.repeats import with_repeats, without_repeats
from milepost.storage.statements import Prepared
from milepost.storage.tables import event_pieces, events, identifiers

PIECE_BYTES: Final = 1000
_AT_ONCE: Final = 400
_LENGTH: Final = 2

_ADD = Prepared(insert(event_pieces))
_GET = (
    select(event_pieces.c.seq, event_pieces.c.data)
    .where(
        event_pieces.c.stream == bindparam("stream"),
        event_pieces.c.seq.in_(bindparam("seqs", expanding=True)),
    )
    .order_by(event_pieces.c.seq, event_pieces.c.part)
)
_ALL = (
    select(events.c.stream, events.c.seq, events.c.pieces, events.c.body, identifiers.c.name)
    .join_from(events, identifiers, identifiers.c.number == events.c.turn, isouter=True)
    .order_by(events.c.stream, events.c.seq)
)


def body(key: str, payload: bytes, turn_id: str | None) -> bytes:
    """The packed form of an event's key and payload."""
    name = key.encode()
    data = len(name).to_bytes(_LENGTH, "big") + name + without_repeats(payload)
    return packed(data, (turn_id or "").encode())


def opened(kept: bytes, turn_id: str | None) -> tuple[str, bytes]:
    """Key and payload of a body. Of a damaged one what is left, so that the event's hash does not hold."""
    try:
        data = unpacked(kept, (turn_id or "").encode())
    except Unpackable:
        return "", kept
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    return data[_LENGTH:end].decode("utf-8", "replace"), with_repeats(data[end:])


def divided(kept: bytes) -> tuple[list[bytes], bytes]:
    """Full pieces of a body, and what is left at its end."""
    full = len(kept) // PIECE_BYTES
    return [kept[n * PIECE_BYTES : (n + 1) * PIECE_BYTES] for n in range(full)], kept[full * PIECE_BYTES :]


class Bodies:
    """Keeps bodies and finds them again, within one transaction."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def keep(self, stream: int, seq: int, kept: bytes) -> tuple[int, bytes]:
        """How many pieces of a body were put apart, and the end of it, which is for the row."""
        pieces, end = divided(kept)
        if pieces:
            rows = [{"stream": stream, "seq": seq, "part": part, "data": data} for part, data in enumerate(pieces)]
            _ADD.run_many(self._conn, rows)
        return len(pieces), end

    def whole(self, stream: int, rows: Iterable[Any]) -> dict[int, bytes]:
        """By seq: the bodies of rows (with `seq`, `pieces` and `body`) of one stream; less if pieces are lost."""
        ends = {row.seq: bytes(row.body) for row in rows}
        apart = [row.seq for row in rows if row.pieces]
        before: dict[int, list[bytes]] = {}
        for start in range(0, len(apart), _AT_ONCE):
            params: dict[str, Any] = {"stream": stream, "seqs": apart[start : start + _AT_ONCE]}
            for seq, data in self._conn.execute(_GET, params):
                before.setdefault(seq, []).append(bytes(data))
        return {seq: b"".join([*before.get(seq, ()), end]) for seq, end in ends.items()}

    def payloads(self, batch: int) -> Iterator[bytes]:
        """Every payload of the ledger; so many are in memory at a time."""
        with self._conn.execution_options(yield_per=batch).execute(_ALL) as rows:
            for part in rows.partitions():
                for stream, of_stream in _by_stream(part):
                    held = self.whole(stream, of_stream)
                    yield from (opened(held[row.seq], row.name)[1] for row in of_stream)


def _by_stream(rows: Iterable[Any]) -> Iterator[tuple[int, list[Any]]]:
    streams: dict[int, list[Any]] = {}
    for row in rows:
        streams.setdefault(row.stream, []).append(row)
    yield from streams.items()
