"""Following a Session live: a snapshot, then events and deltas in order, resumable at any point.

Readers pull from the tables at their own speed, and those at the same place share a read. A slow reader is late; one
that falls behind the bounds in `live_batches` is told which text it was not sent, and where to get it. Text whose delta
log is gone is in the events that replaced it. A reader that waits costs one wake-up registration and one look at the
tables per keep-alive, nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from milepost.domain.errors import EffectNotFound, InvalidInput, TextNotFound, TurnNotFound
from milepost.domain.events import TERMINAL_TURN_EVENTS, ModelCalled
from milepost.domain.messages import ReasoningPart, TextPart
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.notifier import Notifier
from milepost.ports.system import Clock
from milepost.services.live_batches import SharedReads, status_of
from milepost.services.live_frames import Cursor, Frame, Reader

__all__ = ["Cursor", "Frame", "LiveService"]

_CLOSING_TOPIC = "live.closing"
_TERMINAL = tuple(cls.TYPE for cls in TERMINAL_TURN_EVENTS)
_CHANNELS = ("text", "reasoning")
KEEPALIVE_SECONDS = 10.0
"""Below the 15 s at which proxies begin to cut idle streams."""
MAX_PART = 4 * 1024 * 1024
"""Characters of streamed text that are given at once."""


class LiveService:
    """Serves any number of readers from the ledger; Temporal is never asked."""

    def __init__(self, ledger: Ledger, notifier: Notifier, clock: Clock) -> None:
        self._ledger = ledger
        self._notifier = notifier
        self._clock = clock
        self._reads = SharedReads(ledger, clock)
        self._closings = 0

    def close(self) -> None:
        """End every reader that follows now, as soon as it has passed on the frame at hand; never blocks."""
        self._closings += 1
        self._notifier.publish(frozenset({_CLOSING_TOPIC}))

    async def text(self, effect_id: str, attempt: int, channel: str, start: int, end: int) -> str:
        """Characters `start` to `end` of what an attempt of a model call has streamed, or as many as there are yet.

        From the delta log while the turn runs, then from the recorded answer.

        Raises:
            InvalidInput: an unknown channel, or more than 4 Mi characters at once.
            EffectNotFound, TextNotFound (the text of a superseded attempt is gone when its turn has ended).
        """
        if channel not in _CHANNELS:
            raise InvalidInput(f"There is no channel '{channel}'.", field="channel", fix="Known: text, reasoning.")
        if not 0 <= start <= end <= start + MAX_PART:
            raise InvalidInput(
                f"The range {start} to {end} cannot be given.",
                field="end",
                fix=f"Ask for at most {MAX_PART} characters at a time, from a start up to an end.",
            )
        return await self._ledger.read(lambda tx: _text(tx, effect_id, attempt, channel, start, end))

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
            reader = Reader(session_id, after, until_turn)
            now = asyncio.get_running_loop().time
            yield await self._ledger.read(partial(_snapshot, reader=reader, at=self._clock.now()))
            due = now() + KEEPALIVE_SECONDS
            while self._closings == opened_at:
                batch = await self._reads.after(reader.place)
                for frame in reader.frames(batch):
                    yield frame
                    last = frame.data.get("type") in _TERMINAL and frame.data["turn_id"] == until_turn
                    if last or self._closings != opened_at:
                        return
                    due = now() + KEEPALIVE_SECONDS
                if reader.ended(batch):
                    return
                if now() >= due:
                    yield Frame("keepalive", reader.cursor)
                    due = now() + KEEPALIVE_SECONDS
                if not batch.more:
                    await subscription.wait(max(0.0, due - now()))
        finally:
            subscription.close()


def _snapshot(tx: LedgerTx, *, reader: Reader, at: int) -> Frame:
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
    reader.status = None if turn is None else status_of(tx, turn, at)
    data = {
        "session_id": session.session_id,
        "session_status": session.status,
        "version": head,
        "active_turn": reader.status,
    }
    return Frame("snapshot", reader.cursor, data)


def _text(tx: LedgerTx, effect_id: str, attempt: int, channel: str, start: int, end: int) -> str:
    effect = tx.effects.get(effect_id)
    if effect is None:
        raise EffectNotFound(f"There is no effect {effect_id}.", field="effect_id")
    stored = tx.events.find(effect.spec.session_id, f"{effect_id}/called")
    event = None if stored is None else decode_event(stored.type, stored.version, stored.payload)
    if isinstance(event, ModelCalled) and event.attempt == attempt:
        parts = [part for part in event.message.parts if isinstance(part, TextPart | ReasoningPart)]
        return "".join(part.text for part in parts if part.kind == channel)[start:end]
    part = tx.deltas.part(effect_id, attempt, channel, start, end)
    if part is not None:
        return part
    raise TextNotFound(
        f"Attempt {attempt} of this call has no {channel} from character {start} on.",
        field="attempt",
        fix="Follow the Session: the answer that counts is in its model.called event.",
    )
