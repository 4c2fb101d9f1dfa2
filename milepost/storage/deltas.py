"""The delta log: streamed text of calls in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import BigInteger, Connection, bindparam, delete, func, select

from milepost.domain.turns import TurnState
from milepost.ports.ledger import Delta, DeltaSpan
from milepost.storage.statements import insert_ignore
from milepost.storage.tables import deltas, turns

# Locking the turn puts its writers in one order, so a reader never passes a position that appears later, and no piece
# can arrive after the turn's end has deleted them.
_LOCK_RUNNING = (
    select(turns.c.turn_id)
    .where(turns.c.turn_id.in_(bindparam("turns", expanding=True)), turns.c.state == TurnState.RUNNING.value)
    .order_by(turns.c.turn_id)
    .with_for_update(key_share=True)
)
_ADD = insert_ignore(deltas)
_READ = (
    select(
        deltas.c.position,
        deltas.c.turn_id,
        deltas.c.agent,
        deltas.c.effect_id,
        deltas.c.attempt,
        deltas.c.channel,
        deltas.c.offset,
        deltas.c.text,
    )
    .where(
        deltas.c.turn_id == bindparam("turn"),
        deltas.c.position > bindparam("after"),
        deltas.c.session_id == bindparam("session"),
    )
    .order_by(deltas.c.position)
    .limit(bindparam("page", type_=BigInteger))
)
_DROP = delete(deltas).where(deltas.c.turn_id == bindparam("turn"))
_PARTIAL = (
    select(deltas.c.channel, deltas.c.text)
    .where(deltas.c.effect_id == bindparam("effect"), deltas.c.attempt == bindparam("number"))
    .order_by(deltas.c.channel, deltas.c.offset)
)
_AFTER = (deltas.c.turn_id == bindparam("turn"), deltas.c.position > bindparam("after"))
_SIZE = select(func.count(), func.coalesce(func.sum(func.length(deltas.c.text)), 0)).where(*_AFTER)
_CHANNEL = (deltas.c.agent, deltas.c.effect_id, deltas.c.attempt, deltas.c.channel)
_SPANS = (
    select(*_CHANNEL, func.min(deltas.c.offset), func.max(deltas.c.position).label("last"))
    .where(*_AFTER)
    .group_by(*_CHANNEL)
    .order_by("last")
)
_AT = select(deltas.c.position, deltas.c.offset, deltas.c.text).where(
    deltas.c.position.in_(bindparam("positions", expanding=True))
)
_PART = (
    select(deltas.c.offset, deltas.c.text)
    .where(
        deltas.c.effect_id == bindparam("effect"),
        deltas.c.attempt == bindparam("number"),
        deltas.c.channel == bindparam("name"),
        deltas.c.offset < bindparam("end", type_=BigInteger),
    )
    .order_by(deltas.c.offset.desc())
)


class SqlDeltas:
    """`ports.ledger.Deltas`. New pieces wake the Session's readers after the commit."""

    def __init__(self, conn: Connection, notify: Callable[[str], None]) -> None:
        self._conn = conn
        self._notify = notify

    def add(self, session_id: str, new: Sequence[Delta], at: int) -> None:
        if not new:
            return
        running = set(self._conn.execute(_LOCK_RUNNING, {"turns": list({delta.turn_id for delta in new})}).scalars())
        rows = [
            {
                "session_id": session_id,
                "turn_id": delta.turn_id,
                "agent": delta.agent,
                "effect_id": delta.effect_id,
                "attempt": delta.attempt,
                "channel": delta.channel,
                "offset": delta.offset,
                "text": delta.text,
                "at": at,
            }
            for delta in new
            if delta.turn_id in running
        ]
        if rows:
            self._conn.execute(_ADD.on(self._conn), rows if len(rows) > 1 else rows[0])
            self._notify(session_id)

    def read(self, session_id: str, turn_id: str, *, after: int, limit: int) -> list[tuple[int, Delta]]:
        rows = self._conn.execute(_READ, {"session": session_id, "turn": turn_id, "after": after, "page": limit})
        return [(row[0], Delta(*row[1:])) for row in rows]

    def drop_turn(self, turn_id: str) -> None:
        self._conn.execute(_DROP, {"turn": turn_id})

    def partial(self, effect_id: str, attempt: int) -> dict[str, str]:
        pieces: dict[str, list[str]] = {}
        for channel, text in self._conn.execute(_PARTIAL, {"effect": effect_id, "number": attempt}):
            pieces.setdefault(channel, []).append(text)
        return {channel: "".join(texts) for channel, texts in pieces.items()}

    def size_after(self, turn_id: str, position: int) -> tuple[int, int]:
        count, size = self._conn.execute(_SIZE, {"turn": turn_id, "after": position}).one()
        return int(count), int(size)

    def spans_after(self, turn_id: str, position: int) -> list[DeltaSpan]:
        found = self._conn.execute(_SPANS, {"turn": turn_id, "after": position}).all()
        # The characters of a piece are counted here: the databases count bytes, or stop at a NUL.
        last = self._conn.execute(_AT, {"positions": [row[-1] for row in found]})
        ends = {at: offset + len(text) for at, offset, text in last}
        return [DeltaSpan(*row[:-1], end=ends[row[-1]], position=row[-1]) for row in found]

    def part(self, effect_id: str, attempt: int, channel: str, start: int, end: int) -> str | None:
        pieces: list[str] = []
        known = None
        rows = self._conn.execute(_PART, {"effect": effect_id, "number": attempt, "name": channel, "end": end})
        for offset, text in rows:
            if known is not None and offset + len(text) != known:
                return None
            known = offset
            pieces.append(text)
            if offset <= start:
                break
        rows.close()
        if known is None or known > start:
            return None
        return "".join(reversed(pieces))[start - known : end - known]
