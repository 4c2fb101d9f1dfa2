"""Reading what comes after a live reader's place, once for all readers that stand at the same place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from milepost.domain.effects import EffectState
from milepost.domain.events import ModelRetried, TurnBegun
from milepost.domain.turns import Turn
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Delta, DeltaSpan, Ledger, LedgerTx
from milepost.ports.system import Clock
from milepost.services.batches import bounded_batch
from milepost.services.statuses import status_at

_SETTLED = 2**62
EVENT_BATCH = 64
DELTA_BATCH = 500
BATCH_BYTES = 1024 * 1024
"""What a reader that takes nothing holds at most, unless a single event is larger."""
BEHIND_PIECES = 1000
"""Pieces of streamed text that a live reader may be behind: 25 s of a call that streams without a pause."""
BEHIND_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader stands: last event seq, last delta position, the turn it knows of, and whether it is live."""

    session_id: str
    seq: int
    delta: int
    turn_id: str | None
    live: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """What one consistent snapshot holds after a place.

    `running` is the running turn if the events end here, else None; `resumed` is the same if it began before the place
    and the reader has not met it yet; `voided` are its attempts that were superseded before the place. `fences` are the
    first attempts whose text may be shown, by call. `skipped` is text that a live reader is too far behind to be sent.
    """

    events: list[StoredEvent]
    running: str | None = None
    resumed: str | None = None
    deltas: list[tuple[int, Delta]] = field(default_factory=list)
    skipped: list[DeltaSpan] = field(default_factory=list)
    voided: dict[str, int] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)
    status: dict[str, Any] | None = None
    more: bool = False


class SharedReads:
    """Batches for any number of readers. Those who ask for the same place at the same time share one read."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._waiting: dict[Place, asyncio.Task[Batch]] = {}

    async def after(self, place: Place) -> Batch:
        """What is committed by now, and perhaps more. Raises StorageUnavailable."""
        task = self._waiting.get(place)
        if task is None:
            task = self._waiting[place] = asyncio.create_task(self._read(place))
        # A reader that leaves must not take the read from the others.
        return await asyncio.shield(task)

    async def _read(self, place: Place) -> Batch:
        # From here on the read is under way: whoever asks later may know of a later commit, and gets a read of its own.
        del self._waiting[place]
        return await self._ledger.read(partial(read_batch, place=place, at=self._clock.now()))


def read_batch(tx: LedgerTx, *, place: Place, at: int) -> Batch:
    """What comes after a place, within the bounds of a batch."""
    events, more = _events_after(tx, place.session_id, place.seq)
    if more:
        # Deltas wait until the reader has caught up with the events, so that order holds.
        return Batch(events, more=True)
    turn = tx.turns.running(place.session_id)
    if turn is None:
        return Batch(events)
    begun = any(stored.type == TurnBegun.TYPE and stored.turn_id == turn.turn_id for stored in events)
    after = 0 if begun else place.delta
    deltas, more = _deltas_after(tx, turn, after)
    skipped = _skipped(tx, turn, after) if more and place.live else []
    if skipped:
        deltas, more = [], False
    resumed = turn.turn_id != place.turn_id and not begun
    calls = {delta.effect_id for _, delta in deltas} | {span.effect_id for span in skipped}
    return Batch(
        events,
        turn.turn_id,
        turn.turn_id if resumed else None,
        deltas,
        skipped,
        voided=_voided_before(tx, turn, place.seq) if resumed else {},
        fences=_fences(tx, calls),
        status=None if more else status_of(tx, turn, at),
        more=more,
    )


def status_of(tx: LedgerTx, turn: Turn, at: int) -> dict[str, Any]:
    """A running turn as `snapshot` and `status` frames tell it."""
    status = status_at(tx, turn, at)
    return {"turn_id": turn.turn_id, "number": turn.number, "state": turn.state, "status": status}


def _events_after(tx: LedgerTx, session_id: str, seq: int) -> tuple[list[StoredEvent], bool]:
    def read(last: StoredEvent | None, limit: int) -> list[StoredEvent]:
        return tx.events.read(session_id, after=seq if last is None else last.seq, limit=limit)

    return bounded_batch(read, lambda stored: len(stored.payload), count=EVENT_BATCH, max_bytes=BATCH_BYTES)


def _deltas_after(tx: LedgerTx, turn: Turn, position: int) -> tuple[list[tuple[int, Delta]], bool]:
    def read(last: tuple[int, Delta] | None, limit: int) -> list[tuple[int, Delta]]:
        return tx.deltas.read(turn.session_id, turn.turn_id, after=position if last is None else last[0], limit=limit)

    # A character takes up to four bytes in memory.
    return bounded_batch(read, lambda item: 4 * len(item[1].text), count=DELTA_BATCH, max_bytes=BATCH_BYTES)


def _skipped(tx: LedgerTx, turn: Turn, position: int) -> list[DeltaSpan]:
    pieces, size = tx.deltas.size_after(turn.turn_id, position)
    if pieces <= BEHIND_PIECES and size <= BEHIND_BYTES:
        return []
    return tx.deltas.spans_after(turn.turn_id, position)


def _voided_before(tx: LedgerTx, turn: Turn, seq: int) -> dict[str, int]:
    """Attempts of the turn whose end lies before a reader's cursor: (effect id, attempt)."""
    voided: dict[str, int] = {}
    for stored in tx.events.read_turn(turn.session_id, turn.turn_id, types=(ModelRetried.TYPE,)):
        event = decode_event(stored.type, stored.version, stored.payload)
        if isinstance(event, ModelRetried) and stored.seq <= seq:
            voided[event.effect_id] = max(event.attempt, voided.get(event.effect_id, 0))
    return voided


def _fences(tx: LedgerTx, effect_ids: set[str]) -> dict[str, int]:
    """First attempts that may be shown: the one in flight; none of a settled call, whose text is in an event by now."""
    fences: dict[str, int] = {}
    for effect_id in effect_ids:
        effect = tx.effects.get(effect_id)
        if effect is not None:
            fences[effect_id] = effect.attempt if effect.state is EffectState.DISPATCHED else _SETTLED
    return fences
