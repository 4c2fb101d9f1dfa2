"""Checkpoints beside the work: read once before an agent's first model call here, written behind its answers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from milepost.domain.checkpoints import Checkpoint, CheckpointPolicy, Segment
from milepost.domain.errors import MilepostError
from milepost.engine.budgets import session_scope
from milepost.observability.logging import get_logger
from milepost.ports.checkpoints import CheckpointStore
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.system import Clock
from milepost.services.checkpointing import CheckpointKeeper
from milepost.services.earlier import Earlier, EarlierTurns, Key, Known

SMALL_BYTES = 1024 * 1024
SHARE = 8
"""Beyond `SMALL_BYTES` a checkpoint is written when an eighth of the conversation is new, so the bytes that are written
stay in proportion to what was said, and what has to be read again stays small."""

MAX_PENDING = 256
MAX_STARTED = 4096
DRAIN_SECONDS = 10.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """`every`: with the policy `every_n`, which answers of an agent are followed by a checkpoint."""

    policy: CheckpointPolicy = CheckpointPolicy.EVERY_RESPONSE
    every: int = 8


@dataclass(frozen=True, slots=True)
class Answered:
    """The conversation after an answer. `turn` is the running turn so far, `event_key` the answer's event."""

    key: Key
    earlier: Earlier
    turn: Segment
    event_key: str


@dataclass(slots=True)
class _Written:
    """What the newest file has: ended turns, and how much of a running one. `answers` were given since."""

    sizes: dict[str, int]
    answers: int = 0


class Checkpoints:
    """The checkpoints of the conversations this process works on; none of its failures reaches a turn."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        store: CheckpointStore,
        turns: EarlierTurns,
        settings: CheckpointSettings | None = None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._keeper = CheckpointKeeper(ledger, store)
        self._turns = turns
        self._settings = settings or CheckpointSettings()
        self._started: OrderedDict[tuple[str, str], tuple[str, ...]] = OrderedDict()
        self._written: OrderedDict[Key, _Written] = OrderedDict()
        self._pending: OrderedDict[Key, Answered] = OrderedDict()
        self._writer: asyncio.Task[None] | None = None

    async def start(self, turn_id: str, agent: str) -> tuple[str, ...]:
        """Before a turn's conversation is read: load the checkpoint unless its turns are known here.

        Returns what people are to be told, the same at every call for a turn.
        """
        place = (turn_id, agent)
        if self._settings.policy is CheckpointPolicy.NONE:
            return ()
        if place not in self._started:
            try:
                self._started[place] = await self._load(turn_id, agent)
            except MilepostError as error:
                _log.warning("checkpoint.unread", turn_id=turn_id, error=error.code, detail=error.message)
                return ()
            while len(self._started) > MAX_STARTED:
                self._started.popitem(last=False)
        return self._started[place]

    async def _load(self, turn_id: str, agent: str) -> tuple[str, ...]:
        key = (await self._ledger.read(lambda tx: tx.turns.get(turn_id).session_id), agent)
        if self._turns.known(key) is not None:
            return ()
        found = await self._keeper.load(key)
        if found.checkpoint is not None:
            segments = {item.turn_id: item for item in found.checkpoint.segments if item.ended}
            known = Known(found.checkpoint.view, found.checkpoint.seq, bytes.fromhex(found.checkpoint.hash), segments)
            self._turns.keep(key, known)
            self._remember(key, _Written({turn: item.size for turn, item in segments.items()}))
        return found.notes

    def answered(self, answered: Answered) -> None:
        """An answer was recorded. Returns at once; the file is written behind the work if the policy says so."""
        if not self._due(answered):
            return
        self._pending[answered.key] = answered  # one that still waits has less
        self._pending.move_to_end(answered.key)
        while len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="checkpoints")

    async def close(self) -> None:
        """Finish what is to be written, for a bounded time."""
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=DRAIN_SECONDS)
            self._writer.cancel()

    def _due(self, answered: Answered) -> bool:
        policy = self._settings.policy
        if policy in (CheckpointPolicy.NONE, CheckpointPolicy.MANUAL):
            return False
        written = self._written.get(answered.key) or _Written({})
        written.answers += 1
        self._remember(answered.key, written)
        if policy is CheckpointPolicy.EVERY_N and written.answers < self._settings.every:
            return False
        sizes = _sizes(answered)
        total = sum(sizes.values())
        new = sum(max(size - written.sizes.get(turn, 0), 0) for turn, size in sizes.items())
        return total <= SMALL_BYTES or new * SHARE >= total

    def _remember(self, key: Key, written: _Written) -> None:
        self._written[key] = written
        self._written.move_to_end(key)
        while len(self._written) > MAX_STARTED:
            self._written.popitem(last=False)

    async def _write_all(self) -> None:
        while self._pending:
            key, answered = self._pending.popitem(last=False)
            try:
                checkpoint = await self._ledger.read(lambda tx: self._checkpoint(tx, answered))  # noqa: B023
                if checkpoint is not None:
                    await asyncio.to_thread(self._keeper.save, checkpoint)
                    self._remember(key, _Written(_sizes(answered)))
            except MilepostError as error:
                _log.warning(
                    "checkpoint.unwritten", session_id=key[0], agent=key[1], error=error.code, detail=str(error)
                )
            except Exception:
                # A cache that cannot be written must not end the loop that writes the others.
                _log.exception("checkpoint.crashed", session_id=key[0], agent=key[1])

    def _checkpoint(self, tx: LedgerTx, answered: Answered) -> Checkpoint | None:
        session_id, agent = answered.key
        event = tx.events.find(session_id, answered.event_key)
        if event is None:
            return None
        segments = (*answered.earlier.segments, answered.turn)
        return Checkpoint(
            session_id=session_id,
            agent=agent,
            view=answered.earlier.known.view,
            seq=event.seq,
            hash=event.hash.hex(),
            at=self._clock.now(),
            usage=tx.budgets.spending(session_scope(session_id)).usage,
            omitted=answered.earlier.omitted,
            segments=segments,
        )


def _sizes(answered: Answered) -> dict[str, int]:
    return {item.turn_id: item.size for item in (*answered.earlier.segments, answered.turn)}
