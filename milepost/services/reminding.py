"""What an agent is reminded of in a turn: found once, before its first model call, and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from milepost.domain.errors import MilepostError, TurnNotFound
from milepost.domain.events import AgentStarted, Event, StreamKind
from milepost.domain.memory import MemorySettings, Recall, Scope
from milepost.domain.memory_events import MemoryRecalled
from milepost.domain.tools import EDITING_TOOLS
from milepost.domain.turns import Turn
from milepost.engine.reminders import BlockNow, base_text, changed_blocks, request_text, shape_of
from milepost.ledger.codec import decode_event
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.semantic import SemanticMemory
from milepost.ports.system import Clock
from milepost.services.blocks import BlockService
from milepost.services.effects import require_claim

REMIND_SECONDS = 5.0
"""What blocks may take, and recall, before a turn goes on without."""

MAX_QUERY_CHARACTERS = 8_000
LOOK_BACK = 200
"""Turns before this one that are looked at for what the agent has seen last."""


_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Moment:
    """A turn that begins. `omitted` is the newest earlier turn that its model is not shown; 0 if it is shown all.

    `request` is the turn's whole text; it is only needed to recall what is not shown.
    """

    turn: Turn
    started: AgentStarted
    claim: str
    request: str = ""
    omitted: int = 0


@dataclass(slots=True)
class _Found:
    blocks: list[BlockNow] | None = None
    recall: Recall = field(default_factory=Recall)
    notes: list[str] = field(default_factory=list)


class Reminders:
    """Finds, records and gives back reminders. What fails is noted and fails no turn."""

    def __init__(self, ledger: Ledger, clock: Clock, blocks: BlockService, semantic: SemanticMemory) -> None:
        self._ledger = ledger
        self._clock = clock
        self._blocks = blocks
        self._semantic = semantic

    async def remind(self, moment: Moment) -> MemoryRecalled | None:
        """The reminder of this turn and agent, recorded now if there is none yet; None for an agent without memory.

        Raises TurnClaimed, StorageUnavailable.
        """
        settings = moment.started.memory
        if settings is None:
            return None
        found = _Found()
        scope = Scope.of_part(moment.turn.session_id, moment.started.agent)
        await self._read_blocks(scope, settings, found)
        if settings.recall and moment.omitted:
            await self._recall(scope, settings, moment, found)
        before = await self._ledger.read(lambda tx: _seen_last(tx, moment))
        event = _reminder(moment, settings, found, before)
        now = self._clock.now()

        def body(tx: LedgerTx) -> MemoryRecalled:
            require_claim(tx, moment.turn.turn_id, moment.claim)
            key = reminder_key(moment.turn.turn_id, moment.started.agent)
            new = NewEvent(key, event, moment.turn.turn_id)
            tx.events.append(moment.turn.session_id, StreamKind.SESSION, [new], now)
            tx.notify(moment.turn.session_id)
            # Another attempt may have been faster: what is recorded counts.
            return _find(tx, moment.turn.session_id, moment.turn.turn_id, moment.started.agent) or event

        return await self._ledger.write(body)

    async def base(self, session_id: str, events: Sequence[Event], agent: str) -> str:
        """The core blocks that follow the system prompt in a turn with these events."""
        own = next((event for event in events if isinstance(event, MemoryRecalled) and event.agent == agent), None)
        if own is None or own.base_turn_id == own.turn_id:
            return own.base if own is not None else ""
        made = await self._ledger.read(lambda tx: _find(tx, session_id, own.base_turn_id, agent))
        return made.base if made is not None else ""

    async def _read_blocks(self, scope: Scope, settings: MemorySettings, found: _Found) -> None:
        try:
            async with asyncio.timeout(REMIND_SECONDS):
                blocks = await self._blocks.all(scope, settings.blocks)
            found.blocks = [BlockNow(block.spec, block.seen, block.value) for block in blocks]
        except Exception as error:  # of a file, an index or a model: no reason for a turn to fail
            found.notes.append(_note("Core memory could not be read", error))

    async def _recall(self, scope: Scope, settings: MemorySettings, moment: Moment, found: _Found) -> None:
        try:
            async with asyncio.timeout(REMIND_SECONDS):
                hidden, shown = await self._ledger.read(lambda tx: _turns(tx, moment))
                found.recall = await self._semantic.search(
                    scope,
                    moment.request[:MAX_QUERY_CHARACTERS],
                    limit=settings.recall,
                    min_score=settings.min_score,
                    exclude_turns=hidden,
                    shown_turns=shown,
                )
            if found.recall.problem:
                found.notes.append(found.recall.problem[:1000])
        except Exception as error:  # of a file, an index or a model: no reason for a turn to fail
            found.notes.append(_note("Nothing was recalled", error))


def reminder_key(turn_id: str, agent: str) -> str:
    """Event key of an agent's reminder."""
    return f"{turn_id}/{agent}/recalled"


def _note(what: str, error: Exception) -> str:
    if isinstance(error, TimeoutError):
        why = f"no answer within {REMIND_SECONDS:.0f} seconds"
    else:
        why = str(error) if isinstance(error, MilepostError) else f"{type(error).__name__}: {error}"
    _log.warning("memory.failed", what=what, error=why)
    return f"{what}: {why}"[:1000]


def _reminder(moment: Moment, settings: MemorySettings, found: _Found, before: MemoryRecalled | None) -> MemoryRecalled:
    turn_id = moment.turn.turn_id
    editable = any(tool.name in EDITING_TOOLS for tool in moment.started.tools)
    shape = shape_of(settings, editable=editable)
    if before is not None and before.shape != shape:
        before = None
    blocks = found.blocks or []
    if found.blocks is None and before is not None:
        # They cannot be read now: what the agent knows of them is what it knew.
        seen, changed = before.blocks, []
    else:
        seen = tuple(block.seen for block in blocks)
        changed = [] if before is None else changed_blocks(blocks, before)
    return MemoryRecalled(
        turn_id=turn_id,
        agent=moment.started.agent,
        shape=shape if found.blocks is not None or before is not None else "",
        blocks=seen,
        base_turn_id=turn_id if before is None else before.base_turn_id,
        base=base_text(blocks, editable=editable) if before is None else "",
        text=request_text(changed, found.recall.items),
        changed=tuple(block.spec.label for block in changed),
        items=found.recall.items,
        incomplete=found.recall.incomplete,
        notes=tuple(found.notes),
    )


def _find(tx: LedgerTx, session_id: str, turn_id: str, agent: str) -> MemoryRecalled | None:
    stored = tx.events.find(session_id, reminder_key(turn_id, agent))
    event = None if stored is None else decode_event(stored.type, stored.version, stored.payload)
    return event if isinstance(event, MemoryRecalled) else None


def _seen_last(tx: LedgerTx, moment: Moment) -> MemoryRecalled | None:
    """The agent's newest reminder whose base is of a turn that its model is still shown."""
    session_id = moment.turn.session_id
    for number, turn_id in tx.turns.live_before(session_id, moment.turn.number, LOOK_BACK):
        if number <= moment.omitted:
            break
        found = _find(tx, session_id, turn_id, moment.started.agent)
        if found is not None:
            return found if _is_shown(tx, found.base_turn_id, moment) else None
    return None


def _is_shown(tx: LedgerTx, turn_id: str, moment: Moment) -> bool:
    try:
        turn = tx.turns.get(turn_id)
    except TurnNotFound:
        return False
    return turn.number > moment.omitted and not turn.superseded and turn.session_id == moment.turn.session_id


def _turns(tx: LedgerTx, moment: Moment) -> tuple[frozenset[str], frozenset[str]]:
    """Turns that a rewind took out, and live ones that the model is shown anyway."""
    session_id, last = moment.turn.session_id, moment.turn.number
    live = tx.turns.live_before(session_id, last, last - moment.omitted - 1)
    return tx.turns.superseded(session_id), frozenset(turn_id for number, turn_id in live if number > moment.omitted)
