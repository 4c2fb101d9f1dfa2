"""Following a Session live: a snapshot, then events and deltas in order, resumable at any point.

Readers pull from the tables at their own speed. There is no buffer between the ledger and a reader that could
overflow, so a slow reader is late but misses nothing; text whose delta log is gone is in the events that replaced it.
A reader that waits costs one wake-up registration and one look at the tables per keep-alive, nothing else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from milepost.domain.effects import EffectState
from milepost.domain.errors import InvalidInput, TurnNotFound
from milepost.domain.events import TERMINAL_TURN_EVENTS, ModelRetried, TurnBegun
from milepost.domain.turns import Turn
from milepost.engine.status import turn_status
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import decode_event, to_json
from milepost.ports.ledger import Delta, Ledger, LedgerTx
from milepost.ports.notifier import Notifier
from milepost.ports.system import Clock
from milepost.services.batches import bounded_batch

_CURSOR = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?")
_CLOSING_TOPIC = "live.closing"
_SETTLED = 2**62
_TERMINAL = tuple(cls.TYPE for cls in TERMINAL_TURN_EVENTS)
EVENT_BATCH = 64
DELTA_BATCH = 500
BATCH_BYTES = 1024 * 1024
"""What a reader that takes nothing holds at most, unless a single event is larger."""
KEEPALIVE_SECONDS = 10.0
"""Below the 15 s at which proxies begin to cut idle streams."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a reader is: last event seq, and last position in the delta log. Text form `SEQ` or `SEQ.POSITION`."""

    seq: int = 0
    delta: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.delta}"

    @classmethod
    def parse(cls, raw: str) -> Cursor:
        """Raises InvalidInput for anything but the text form."""
        match = _CURSOR.fullmatch(raw)
        if match is None:
            raise InvalidInput(
                f"'{raw[:40]}' is no stream cursor.", field="after", fix="Send the last frame's cursor, or 0."
            )
        return cls(int(match[1]), int(match[2] or 0))


@dataclass(frozen=True, slots=True)
class Frame:
    """One message to a reader: `type`, JSON-shaped `data`, and the cursor to resume after it.

    Types: `snapshot` (first), `event`, `delta`, `attempt.superseded` (drop the text of this call's attempts up to the
    named one), `status` (the running turn's derived status changed), `keepalive`.
    """

    type: str
    cursor: Cursor
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Reader:
    """What one connection remembers; all of it is rebuilt from the ledger when a reader resumes.

    By effect id: `voided` is the last attempt the reader was told to drop, `fences` the first whose text may be shown.
    """

    session_id: str
    cursor: Cursor
    until_turn: str | None
    status: dict[str, Any] | None = None
    turn_id: str | None = None
    voided: dict[str, int] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)

    def enter(self, turn_id: str) -> None:
        """Forget what belonged to another turn."""
        if turn_id != self.turn_id:
            self.turn_id = turn_id
            self.voided.clear()
            self.fences.clear()


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one consistent snapshot holds after a reader's cursor.

    `resumed` is the running turn if it began before the cursor and this connection has not met it yet; `voided` are its
    attempts that were superseded before the cursor. `fences` are the first attempts whose text may be shown, by call.
    """

    events: list[StoredEvent]
    resumed: str | None = None
    deltas: list[tuple[int, Delta]] = field(default_factory=list)
    voided: dict[str, int] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    status: dict[str, Any] | None = None
    more: bool = False
    ended: bool = False


class LiveService:
    """Serves any number of readers from the ledger; Temporal is never asked."""

    def __init__(self, ledger: Ledger, notifier: Notifier, clock: Clock) -> None:
        self._ledger = ledger
        self._notifier = notifier
        self._clock = clock
        self._closings = 0

    def close(self) -> None:
        """End every reader that follows now, as soon as it has passed on the frame at hand; never blocks."""
        self._closings += 1
        self._notifier.publish(frozenset({_CLOSING_TOPIC}))

    async def follow(
        self, session_id: str, after: Cursor, *, until_turn: str | None = None
    ) -> AsyncGenerator[Frame, None]:
        """Frames after a cursor, until `close`, or up to and including the terminal event of `until_turn`.

        Close the iterator when done with it (`contextlib.aclosing`).

        Raises:
            SessionNotFound, TurnNotFound, InvalidInput (a cursor ahead of the Session): before the first frame.
            StorageUnavailable: at any frame; resume with the last cursor.
        """
        opened_at = self._closings
        subscription = self._notifier.subscribe(session_id, _CLOSING_TOPIC)
        try:
            reader = _Reader(session_id, after, until_turn)
            now = asyncio.get_running_loop().time
            yield await self._ledger.read(partial(self._snapshot, reader=reader, at=self._clock.now()))
            due = now() + KEEPALIVE_SECONDS
            while self._closings == opened_at:
                batch = await self._ledger.read(partial(self._read, reader=reader, at=self._clock.now()))
                for frame in self._frames(reader, batch):
                    yield frame
                    last = frame.data.get("type") in _TERMINAL and frame.data["turn_id"] == until_turn
                    if last or self._closings != opened_at:
                        return
                    due = now() + KEEPALIVE_SECONDS
                if batch.ended:
                    return
                if now() >= due:
                    yield Frame("keepalive", reader.cursor)
                    due = now() + KEEPALIVE_SECONDS
                if not batch.more:
                    await subscription.wait(max(0.0, due - now()))
        finally:
            subscription.close()

    def _snapshot(self, tx: LedgerTx, *, reader: _Reader, at: int) -> Frame:
        session = tx.sessions.get(reader.session_id)
        head, _ = tx.events.head(reader.session_id)
        if reader.cursor.seq > head:
            raise InvalidInput(
                f"The cursor {reader.cursor} is ahead of the Session, whose last event is {head}.",
                field="after",
                fix="Follow from 0.",
            )
        if reader.until_turn is not None and tx.turns.get(reader.until_turn).session_id != reader.session_id:
            raise TurnNotFound(f"Session {reader.session_id} has no turn {reader.until_turn}.", field="until_turn")
        turn = tx.turns.running(reader.session_id)
        reader.status = None if turn is None else _status(tx, turn, at)
        data = {
            "session_id": session.session_id,
            "session_status": session.status,
            "version": head,
            "active_turn": reader.status,
        }
        return Frame("snapshot", reader.cursor, data)

    def _read(self, tx: LedgerTx, *, reader: _Reader, at: int) -> _Batch:
        events, more = _events_after(tx, reader.session_id, reader.cursor.seq)
        if more:
            # Deltas wait until the reader has caught up with the events, so that order holds.
            return _Batch(events, more=True)
        ended = reader.until_turn is not None and tx.turns.get(reader.until_turn).state.terminal
        turn = tx.turns.running(reader.session_id)
        if turn is None:
            return _Batch(events, ended=ended)
        begun = any(stored.type == TurnBegun.TYPE and stored.turn_id == turn.turn_id for stored in events)
        after = 0 if begun else reader.cursor.delta
        deltas, more = _deltas_after(tx, turn, after)
        resumed = turn.turn_id != reader.turn_id and not begun
        return _Batch(
            events,
            turn.turn_id if resumed else None,
            deltas,
            voided=_voided_before(tx, turn, reader.cursor.seq) if resumed else {},
            fences=_fences(tx, {delta.effect_id for _, delta in deltas}, reader),
            status=None if events or deltas else _status(tx, turn, at),
            more=more,
            ended=ended,
        )

    def _frames(self, reader: _Reader, batch: _Batch) -> Iterator[Frame]:
        if batch.resumed is not None:
            reader.enter(batch.resumed)
            reader.voided.update(batch.voided)
        for stored in batch.events:
            yield from self._event_frames(reader, stored)
        reader.fences.update(batch.fences)
        for position, delta in batch.deltas:
            yield from self._delta_frames(reader, position, delta)
        if batch.status is not None and batch.status != reader.status:
            reader.status = batch.status
            yield Frame("status", reader.cursor, {"active_turn": batch.status})

    def _event_frames(self, reader: _Reader, stored: StoredEvent) -> Iterator[Frame]:
        event = decode_event(stored.type, stored.version, stored.payload)
        if isinstance(event, TurnBegun):
            reader.enter(event.turn_id)
            # Positions of the delta log are compared within one turn only.
            reader.cursor = Cursor(reader.cursor.seq)
        if isinstance(event, ModelRetried):
            # With the cursor before the event, so that a reader cut off between the two frames gets both again.
            yield _void(reader, event.turn_id, event.effect_id, event.attempt)
        reader.cursor = Cursor(stored.seq, reader.cursor.delta)
        data = {
            "seq": stored.seq,
            "type": stored.type,
            "version": stored.version,
            "at": stored.at,
            "turn_id": stored.turn_id,
            "payload": to_json(event),
        }
        yield Frame("event", reader.cursor, data)

    def _delta_frames(self, reader: _Reader, position: int, delta: Delta) -> Iterator[Frame]:
        voided = reader.voided.get(delta.effect_id, 0)
        if delta.attempt <= voided or delta.attempt < reader.fences.get(delta.effect_id, 0):
            reader.cursor = Cursor(reader.cursor.seq, position)
            return
        if delta.attempt - 1 > voided:
            yield _void(reader, delta.turn_id, delta.effect_id, delta.attempt - 1)
        reader.cursor = Cursor(reader.cursor.seq, position)
        data = {
            "turn_id": delta.turn_id,
            "agent": delta.agent,
            "effect_id": delta.effect_id,
            "attempt": delta.attempt,
            "channel": delta.channel,
            "offset": delta.offset,
            "text": delta.text,
        }
        yield Frame("delta", reader.cursor, data)


def _events_after(tx: LedgerTx, session_id: str, seq: int) -> tuple[list[StoredEvent], bool]:
    def read(last: StoredEvent | None, limit: int) -> list[StoredEvent]:
        return tx.events.read(session_id, after=seq if last is None else last.seq, limit=limit)

    return bounded_batch(read, lambda stored: len(stored.payload), count=EVENT_BATCH, max_bytes=BATCH_BYTES)


def _deltas_after(tx: LedgerTx, turn: Turn, position: int) -> tuple[list[tuple[int, Delta]], bool]:
    def read(last: tuple[int, Delta] | None, limit: int) -> list[tuple[int, Delta]]:
        return tx.deltas.read(turn.session_id, turn.turn_id, after=position if last is None else last[0], limit=limit)

    # A character takes up to four bytes in memory.
    return bounded_batch(read, lambda item: 4 * len(item[1].text), count=DELTA_BATCH, max_bytes=BATCH_BYTES)


def _void(reader: _Reader, turn_id: str, effect_id: str, attempt: int) -> Frame:
    reader.voided[effect_id] = max(attempt, reader.voided.get(effect_id, 0))
    return Frame("attempt.superseded", reader.cursor, {"turn_id": turn_id, "effect_id": effect_id, "attempt": attempt})


def _status(tx: LedgerTx, turn: Turn, at: int) -> dict[str, Any]:
    awaiting = tx.approvals.pending_of_turn(turn.turn_id, 1)
    status = turn_status(turn, awaiting_person=bool(awaiting), last_worker_beat=tx.workers.last_beat(), now=at)
    return {"turn_id": turn.turn_id, "number": turn.number, "state": turn.state, "status": status}


def _voided_before(tx: LedgerTx, turn: Turn, seq: int) -> dict[str, int]:
    """Attempts of the turn whose end lies before a reader's cursor: (effect id, attempt)."""
    voided: dict[str, int] = {}
    for stored in tx.events.read_turn(turn.session_id, turn.turn_id, types=(ModelRetried.TYPE,)):
        event = decode_event(stored.type, stored.version, stored.payload)
        if isinstance(event, ModelRetried) and stored.seq <= seq:
            voided[event.effect_id] = max(event.attempt, voided.get(event.effect_id, 0))
    return voided


def _fences(tx: LedgerTx, effect_ids: set[str], reader: _Reader) -> dict[str, int]:
    """First attempts that may be shown: the one in flight; none of a settled call, whose text is in an event by now."""
    fences: dict[str, int] = {}
    for effect_id in effect_ids:
        if reader.fences.get(effect_id) == _SETTLED:
            continue
        effect = tx.effects.get(effect_id)
        if effect is not None:
            fences[effect_id] = effect.attempt if effect.state is EffectState.DISPATCHED else _SETTLED
    return fences
