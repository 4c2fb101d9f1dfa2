"""Following a Session live: a snapshot, then events and deltas in order, resumable at any point.

Readers pull from the tables at their own speed. There is no buffer between the ledger and a reader that could
overflow, so a slow reader is late but misses nothing; text whose delta log is gone is in the events that replaced it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from milepost.domain.errors import InvalidInput
from milepost.domain.events import TERMINAL_TURN_EVENTS, Event, ModelCalled, ModelFailed, ModelRetried
from milepost.domain.turns import Turn, TurnState
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import decode_event, to_json
from milepost.ports.ledger import Delta, Ledger, LedgerTx
from milepost.ports.notifier import Notifier
from milepost.services.turns import TurnService

_CURSOR = re.compile(r"[0-9]+(\.[0-9]+)?")
EVENT_BATCH = 200
DELTA_BATCH = 500
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
        seq, _, delta = raw.partition(".")
        if (
            not seq.isascii()
            or not seq.isdigit()
            or len(raw) > 40
            or (delta and not (delta.isascii() and delta.isdigit()))
        ):
            raise InvalidInput(
                f"'{raw[:40]}' is no stream cursor.", field="after", fix="Send the last frame's cursor, or 0."
            )
        seq, _, delta = raw.partition(".")
        return cls(int(seq), int(delta or 0))


@dataclass(frozen=True, slots=True)
class Frame:
    """One message to a reader: `type`, JSON-shaped `data`, and the cursor to resume after it.

    Types: `snapshot`, `event`, `delta`, `attempt.superseded`, `keepalive`.
    """

    type: str
    cursor: Cursor
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Reader:
    cursor: Cursor
    turn_id: str | None = None
    finished_calls: set[str] = field(default_factory=set)
    attempts: dict[str, int] = field(default_factory=dict)


class LiveService:
    """Serves any number of readers from the ledger; Temporal is never asked."""

    def __init__(self, ledger: Ledger, notifier: Notifier, turns: TurnService) -> None:
        self._ledger = ledger
        self._notifier = notifier
        self._turns = turns

    async def follow(self, session_id: str, after: Cursor, *, until_turn: str | None = None) -> AsyncIterator[Frame]:
        """Frames after a cursor, for ever, or up to and including the terminal event of `until_turn`.

        Raises SessionNotFound before the first frame.
        """
        subscription = self._notifier.subscribe(session_id)
        try:
            reader = _Reader(after)
            yield await self._snapshot(session_id, after)
            while True:
                events, turn, deltas = await self._ledger.read(lambda tx: self._read(tx, session_id, reader))
                for stored in events:
                    event = decode_event(stored.type, stored.version, stored.payload)
                    for frame in self._event_frames(reader, stored, event):
                        yield frame
                    if isinstance(event, TERMINAL_TURN_EVENTS) and stored.turn_id == until_turn:
                        return
                # Deltas wait until the reader has caught up with the events, so that order holds.
                if len(events) < EVENT_BATCH and turn is not None:
                    for position, delta in deltas:
                        for frame in self._delta_frames(reader, position, delta):
                            yield frame
                if len(events) == EVENT_BATCH or len(deltas) == DELTA_BATCH:
                    continue
                if not events and not deltas and not await subscription.wait(KEEPALIVE_SECONDS):
                    yield Frame("keepalive", reader.cursor)
                else:
                    # One turn of the loop collects what is written in the same moment.
                    await asyncio.sleep(0)
        finally:
            subscription.close()

    async def _snapshot(self, session_id: str, after: Cursor) -> Frame:
        active = await self._turns.active(session_id)
        head, _ = await self._ledger.read(lambda tx: tx.events.head(session_id))
        data: dict[str, Any] = {"session_id": session_id, "version": head, "active_turn": None}
        if active is not None:
            data["active_turn"] = {
                "turn_id": active.turn.turn_id,
                "number": active.turn.number,
                "state": active.turn.state,
                "status": active.status,
            }
        return Frame("snapshot", after, data)

    def _read(
        self, tx: LedgerTx, session_id: str, reader: _Reader
    ) -> tuple[list[StoredEvent], Turn | None, list[tuple[int, Delta]]]:
        events = tx.events.read(session_id, after=reader.cursor.seq, limit=EVENT_BATCH)
        turn = tx.turns.running(session_id)
        deltas: list[tuple[int, Delta]] = []
        if turn is not None and turn.state is TurnState.RUNNING:
            deltas = tx.deltas.read(session_id, turn.turn_id, after=reader.cursor.delta, limit=DELTA_BATCH)
        return events, turn, deltas

    def _event_frames(self, reader: _Reader, stored: StoredEvent, event: Event) -> list[Frame]:
        reader.cursor = Cursor(stored.seq, reader.cursor.delta)
        if stored.turn_id != reader.turn_id and stored.turn_id is not None:
            reader.turn_id = stored.turn_id
            reader.finished_calls.clear()
            reader.attempts.clear()
        frames: list[Frame] = []
        if isinstance(event, ModelCalled | ModelFailed):
            reader.finished_calls.add(event.effect_id)
        if isinstance(event, ModelRetried):
            frames.append(_superseded(reader, event.turn_id, event.effect_id, event.attempt))
        data = {
            "seq": stored.seq,
            "type": stored.type,
            "version": stored.version,
            "at": stored.at,
            "turn_id": stored.turn_id,
            "payload": to_json(event),
        }
        frames.append(Frame("event", reader.cursor, data))
        return frames

    def _delta_frames(self, reader: _Reader, position: int, delta: Delta) -> list[Frame]:
        reader.cursor = Cursor(reader.cursor.seq, position)
        if delta.effect_id in reader.finished_calls:
            return []
        known = reader.attempts.get(delta.effect_id, 0)
        if delta.attempt < known:
            return []
        frames: list[Frame] = []
        if known and delta.attempt > known:
            frames.append(_superseded(reader, delta.turn_id, delta.effect_id, known))
        reader.attempts[delta.effect_id] = delta.attempt
        data = {
            "turn_id": delta.turn_id,
            "agent": delta.agent,
            "effect_id": delta.effect_id,
            "attempt": delta.attempt,
            "channel": delta.channel,
            "offset": delta.offset,
            "text": delta.text,
        }
        frames.append(Frame("delta", reader.cursor, data))
        return frames


def _superseded(reader: _Reader, turn_id: str, effect_id: str, attempt: int) -> Frame:
    return Frame("attempt.superseded", reader.cursor, {"turn_id": turn_id, "effect_id": effect_id, "attempt": attempt})
