"""The events of turns at work, read on from where the last reading ended: a long turn is read in each of its rounds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from milepost.domain.events import Event
from milepost.ledger.chain import StoredEvent
from milepost.ports.ledger import LedgerTx

MAX_BYTES = 32 * 1024 * 1024
"""Payload bytes of the events that are kept."""

Sized = tuple[int, Event]
"""(bytes of the payload, event)"""


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of a turn, up to the event with this seq and hash."""

    seq: int
    hash: bytes
    bytes: int
    events: tuple[Sized, ...]


class OwnEvents:
    """Reads the events of some types of a turn. Safe in several threads.

    What is known of a turn is used only if its last event is still in the ledger under the same hash, which stands for
    all before it: else the turn is read anew.
    """

    def __init__(self, types: Sequence[str], decoded: Callable[[StoredEvent], Event], limit: int = MAX_BYTES) -> None:
        self._types = tuple(types)
        self._decoded = decoded
        self._limit = limit
        self._lock = threading.Lock()
        self._turns: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self.bytes = 0

    def read(self, tx: LedgerTx, session_id: str, turn_id: str) -> tuple[Sized, ...]:
        """The turn's events of the types, ascending. Raises LedgerCorrupt, UnknownEvent."""
        with self._lock:
            known = self._turns.get((session_id, turn_id))
        after = 0 if known is None else known.seq - 1
        stored = tx.events.read_turn(session_id, turn_id, types=self._types, after=after)
        if known is not None:
            if stored and (stored[0].seq, stored[0].hash) == (known.seq, known.hash):
                stored = stored[1:]
            else:
                known = None
                stored = tx.events.read_turn(session_id, turn_id, types=self._types)
        if not stored:
            return () if known is None else known.events
        new = tuple((len(item.payload), self._decoded(item)) for item in stored)
        size = sum(each for each, _ in new)
        events = new if known is None else (*known.events, *new)
        if known is not None:
            size += known.bytes
        self._keep((session_id, turn_id), _Known(stored[-1].seq, stored[-1].hash, size, events))
        return events

    def _keep(self, key: tuple[str, str], known: _Known) -> None:
        with self._lock:
            before = self._turns.pop(key, None)
            if before is not None and before.seq > known.seq:
                known = before  # another thread has read on meanwhile
            self.bytes += known.bytes - (0 if before is None else before.bytes)
            self._turns[key] = known
            while self.bytes > self._limit:
                _, left = self._turns.popitem(last=False)
                self.bytes -= left.bytes
