"""What one live reader is told: the frames that a batch of rows becomes for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from milepost.domain.errors import InvalidInput
from milepost.domain.events import ModelRetried, TurnBegun
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import decode_event, to_json
from milepost.ports.ledger import Delta, DeltaSpan
from milepost.services.live_batches import Batch, Place

_CURSOR = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18}))?")


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

    Types: `snapshot` (first), `event`, `delta`, `gap` (text that was left out for a reader that is too slow),
    `attempt.superseded` (drop the text of this call's attempts up to the named one), `status` (the running turn's
    derived status changed), `keepalive`.
    """

    type: str
    cursor: Cursor
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Reader:
    """What one connection remembers; all of it is rebuilt from the ledger when a reader resumes.

    `live` once the connection has been told everything there was: from then on falling behind is its own doing.
    By effect id: `voided` is the last attempt the reader was told to drop, `fences` the first whose text may be shown.
    """

    session_id: str
    cursor: Cursor
    until_turn: str | None
    status: dict[str, Any] | None = None
    turn_id: str | None = None
    live: bool = False
    voided: dict[str, int] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return Place(self.session_id, self.cursor.seq, self.cursor.delta, self.turn_id, self.live)

    def ended(self, batch: Batch) -> bool:
        """Whether all of the turn that it follows has been told with this batch."""
        return self.until_turn is not None and not batch.more and batch.running != self.until_turn

    def frames(self, batch: Batch) -> Iterator[Frame]:
        """The batch as frames; the reader moves on with each."""
        if batch.resumed is not None:
            self._enter(batch.resumed)
            self.voided.update(batch.voided)
        for stored in batch.events:
            yield from self._event_frames(stored)
        self.fences.update(batch.fences)
        if batch.skipped:
            yield from self._gap_frames(batch.running, batch.skipped)
        for position, delta in batch.deltas:
            yield from self._delta_frames(position, delta)
        if batch.status is not None and batch.status != self.status:
            self.status = batch.status
            yield Frame("status", self.cursor, {"active_turn": batch.status})
        self.live = self.live or not batch.more

    def _enter(self, turn_id: str) -> None:
        """Forget what belonged to another turn."""
        if turn_id != self.turn_id:
            self.turn_id = turn_id
            self.voided.clear()
            self.fences.clear()

    def _event_frames(self, stored: StoredEvent) -> Iterator[Frame]:
        event = decode_event(stored.type, stored.version, stored.payload)
        if isinstance(event, TurnBegun):
            self._enter(event.turn_id)
            # Positions of the delta log are compared within one turn only.
            self.cursor = Cursor(self.cursor.seq)
        if isinstance(event, ModelRetried):
            # With the cursor before the event, so that a reader cut off between the two frames gets both again.
            yield self._void(event.turn_id, event.effect_id, event.attempt)
        self.cursor = Cursor(stored.seq, self.cursor.delta)
        data = {
            "seq": stored.seq,
            "type": stored.type,
            "version": stored.version,
            "at": stored.at,
            "turn_id": stored.turn_id,
            "payload": to_json(event),
        }
        yield Frame("event", self.cursor, data)

    def _delta_frames(self, position: int, delta: Delta) -> Iterator[Frame]:
        if not self._counts(delta):
            self.cursor = Cursor(self.cursor.seq, position)
            return
        yield from self._superseding(delta.turn_id, delta)
        self.cursor = Cursor(self.cursor.seq, position)
        data = {
            "turn_id": delta.turn_id,
            "agent": delta.agent,
            "effect_id": delta.effect_id,
            "attempt": delta.attempt,
            "channel": delta.channel,
            "offset": delta.offset,
            "text": delta.text,
        }
        yield Frame("delta", self.cursor, data)

    def _gap_frames(self, turn_id: str | None, skipped: list[DeltaSpan]) -> Iterator[Frame]:
        # One frame for all of it: a reader cut off before it gets everything again, one cut off after it nothing.
        counted = [span for span in skipped if self._counts(span)]
        for span in counted:
            yield from self._superseding(turn_id or "", span)
        # Of an attempt that a later one among them supersedes nothing is to be fetched.
        ranges = [_range(span) for span in counted if self._counts(span)]
        self.cursor = Cursor(self.cursor.seq, skipped[-1].position)
        if ranges:
            yield Frame("gap", self.cursor, {"turn_id": turn_id, "ranges": ranges})

    def _counts(self, text: Delta | DeltaSpan) -> bool:
        """Whether text is of an attempt that may be shown."""
        voided, fence = self.voided.get(text.effect_id, 0), self.fences.get(text.effect_id, 0)
        return text.attempt > voided and text.attempt >= fence

    def _superseding(self, turn_id: str, text: Delta | DeltaSpan) -> Iterator[Frame]:
        """Before the first text of a later attempt: what it supersedes."""
        if text.attempt - 1 > self.voided.get(text.effect_id, 0):
            yield self._void(turn_id, text.effect_id, text.attempt - 1)

    def _void(self, turn_id: str, effect_id: str, attempt: int) -> Frame:
        self.voided[effect_id] = max(attempt, self.voided.get(effect_id, 0))
        data = {"turn_id": turn_id, "effect_id": effect_id, "attempt": attempt}
        return Frame("attempt.superseded", self.cursor, data)


def _range(span: DeltaSpan) -> dict[str, Any]:
    return {
        "agent": span.agent,
        "effect_id": span.effect_id,
        "attempt": span.attempt,
        "channel": span.channel,
        "start": span.start,
        "end": span.end,
    }
