"""The turns before one, as an agent's model gets them: those known already, the rest from the ledger.

Which turns count is asked of the ledger at every read, so a rewind, a fork or an import needs no word here. What an
ended turn said never changes; only if the ledger itself is another one (restored from a backup) is all forgotten, which
shows in the hash at the position up to which the known turns were read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from milepost.domain.checkpoints import Segment
from milepost.domain.events import AgentStarted, ContextCompacted, Event, TurnBegun
from milepost.domain.messages import Message
from milepost.ledger.chain import StoredEvent
from milepost.ledger.compacted import Compacted, newest, seen_from
from milepost.ledger.transcript import TRANSCRIPT_EVENTS, Part, parts_of, turn_messages
from milepost.ports.ledger import LedgerTx

MAX_PROJECTED_BYTES = 8 * 1024 * 1024
MAX_PROJECTED_TURNS = 500
MAX_KNOWN_BYTES = 32 * 1024 * 1024
FIRST_STEP = 4
LAST_STEP = 100

Key = tuple[str, str]
"""(Session id, agent)."""


@dataclass(frozen=True, slots=True)
class View:
    """How one agent's model gets a turn. Views that make other messages of the same events have other names."""

    agent: str
    messages: Callable[[Sequence[Event]], list[Message]]
    name: str = ""


def reads_outputs(started: AgentStarted) -> bool:
    """Whether the agent has a tool to read outputs whole."""
    return any(tool.name == "read_output" for tool in started.tools)


def view_of(started: AgentStarted) -> View:
    """How the model of an agent that was started so gets turns."""
    agent, readable = started.agent, reads_outputs(started)
    name = "readable" if readable else ""
    return View(agent, lambda events: turn_messages(events, agent, readable=readable), name)


@dataclass(frozen=True, slots=True)
class Known:
    """Whole ended turns by id, oldest first, in one view, as they were read at a position of the Session's stream."""

    view: str
    seq: int
    hash: bytes
    segments: Mapping[str, Segment]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments.values())


@dataclass(frozen=True, slots=True)
class Earlier:
    """The newest whole turns within the bound, oldest first. `places` counts the live turns from each to the one after.

    `compacted` is the compaction that counts; turns that its summary covers are not here.
    `omitted` is the number of the newest one that did not fit, 0 if all did. `read` counts those that were not known.
    """

    segments: tuple[Segment, ...]
    omitted: int
    read: int
    known: Known
    places: tuple[int, ...] = ()
    compacted: Compacted | None = None

    @property
    def parts(self) -> list[Part]:
        return [
            part
            for segment, turns in zip(self.segments, self.places, strict=True)
            for part in parts_of(segment.messages, segment.number, turns)
        ]


class EarlierTurns:
    """Keeps the turns of the Sessions that were used last, within a bound in bytes. Safe in several threads."""

    def __init__(self, decode: Callable[[StoredEvent], Event], limit: int = MAX_KNOWN_BYTES) -> None:
        self._decode = decode
        self._limit = limit
        self._lock = threading.Lock()
        self._known: OrderedDict[Key, Known] = OrderedDict()

    def known(self, key: Key) -> Known | None:
        """What is kept of an agent's turns."""
        with self._lock:
            return self._known.get(key)

    def keep(self, key: Key, known: Known) -> None:
        """Keep these; others that were not used for longer make room."""
        with self._lock:
            self._known[key] = known
            self._known.move_to_end(key)
            size = sum(item.size for item in self._known.values())
            while size > self._limit and len(self._known) > 1:
                size -= self._known.popitem(last=False)[1].size

    def read(
        self,
        tx: LedgerTx,
        session_id: str,
        view: View,
        before: int,
        budget: int,
        max_turns: int,
        own: ContextCompacted | None = None,
    ) -> Earlier:
        """The turns with a number below `before` that are not superseded, newest first while they fit in `budget`.

        They end where a summary covers the rest. `own` is the last compaction of the turn whose conversation this is.
        Whatever is known, the answer is the same. Raises LedgerCorrupt, UnknownEvent.
        """
        key = (session_id, view.agent)
        known = self.known(key)
        if known is not None and not (known.view == view.name and holds(tx, session_id, known.seq, known.hash)):
            known = None
        seq, hash_ = tx.events.head(session_id)
        live = tx.turns.live_before(session_id, before, max_turns + 1)
        reader = _Reader(tx, session_id, view, self._decode, {} if known is None else known.segments, live)
        segments: list[Segment] = []
        places: list[int] = []
        omitted = 0
        compacted = None if own is None else seen_from(own, 0)
        for index, (number, _) in enumerate(live):
            if compacted is not None and compacted.covers_before(index):
                break
            segment = reader.segment(index, budget) if len(segments) < max_turns else None
            budget -= 0 if segment is None else segment.size
            if segment is None or budget < 0:
                omitted = number
                break
            if compacted is None and segment.compacted is not None:
                compacted = seen_from(segment.compacted, index + 1)
            if segment.size:
                segments.append(segment)
                places.append(index + 1)
        segments.reverse()
        places.reverse()
        found = Known(view.name, seq, hash_, {segment.turn_id: segment for segment in segments})
        self.keep(key, found)
        return Earlier(tuple(segments), omitted, reader.read, found, tuple(places), compacted)


class _Reader:
    """Gets turns one after another, reading several unknown ones at once."""

    def __init__(
        self,
        tx: LedgerTx,
        session_id: str,
        view: View,
        decode: Callable[[StoredEvent], Event],
        known: Mapping[str, Segment],
        live: list[tuple[int, str]],
    ) -> None:
        self._tx = tx
        self._session_id = session_id
        self._view = view
        self._decode = decode
        self._known = known
        self._live = live
        self._ahead: dict[str, list[StoredEvent]] = {}
        self._step = FIRST_STEP
        self._bytes = 0
        self.read = 0

    def segment(self, index: int, budget: int) -> Segment:
        """The segment of a live turn; without messages its size is 0."""
        number, turn_id = self._live[index]
        known = self._known.get(turn_id)
        if known is not None:
            return replace(known, number=number) if known.number != number else known
        if turn_id not in self._ahead:
            self._read_ahead(index, budget)
        stored = self._ahead.pop(turn_id)
        size = sum(len(item.payload) for item in stored)
        if size > budget:
            return Segment(turn_id, number, size, ())  # it does not fit, so nobody needs its messages
        events = [self._decode(item) for item in stored]
        if any(isinstance(event, TurnBegun) and event.request.options.stateless for event in events):
            return Segment(turn_id, number, size, ())
        compacted = newest(events, self._view.agent)
        return Segment(turn_id, number, size, tuple(self._view.messages(events)), compacted=compacted)

    def _read_ahead(self, index: int, budget: int) -> None:
        """As many unknown turns as are expected to fit by the size of those before."""
        if self.read:
            average = max(self._bytes // self.read, 1)
            self._step = max(1, min(self._step * 4, LAST_STEP, budget // average + 1))
        following = (turn_id for _, turn_id in self._live[index : index + LAST_STEP] if turn_id not in self._known)
        wanted = [turn_id for turn_id, _ in zip(following, range(self._step), strict=False)]
        self._ahead = {turn_id: [] for turn_id in wanted}
        for item in self._tx.events.read_turns(self._session_id, wanted, types=TRANSCRIPT_EVENTS):
            self._ahead[item.turn_id or ""].append(item)
            self._bytes += len(item.payload)
        self.read += len(wanted)


def holds(tx: LedgerTx, session_id: str, seq: int, hash_: bytes) -> bool:
    """Whether the Session's stream has this hash at this position: the ledger is the one that was read."""
    found = tx.events.read(session_id, after=seq - 1, limit=1)
    return bool(found) and found[0].seq == seq and found[0].hash == hash_
