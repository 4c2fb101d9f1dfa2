"""History: the pages of a Session, newest turn first."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.domain.budgets import Limits, Spending
from milepost.domain.effects import Effect, EffectState
from milepost.domain.environments import Environment
from milepost.domain.errors import EffectNotFound
from milepost.domain.events import (
    AgentOutput,
    AgentStarted,
    ApprovalRequested,
    BudgetReached,
    ContextCompacted,
    EffectReconciled,
    Event,
    HookDecided,
    ModelCalled,
    ModelFailed,
    ModelRetried,
    ToolFinished,
    ToolStarted,
)
from milepost.domain.memory_events import MemoryRecalled, MemoryWritten
from milepost.domain.rewinds import Rewind
from milepost.domain.sessions import SessionStatus
from milepost.domain.team_events import AgentEnded, GoalDecomposed, SubtaskEnded, SubtasksAwarded
from milepost.domain.turns import Turn
from milepost.engine.budgets import session_scope
from milepost.ledger.codec import decode_event
from milepost.ledger.history import HistoryEntry, history_entry
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.finishing import tool_event_key
from milepost.services.sessions import MAX_PAGE

PAGE_BYTES = 8 * 1024 * 1024
"""Of what one page is made from; a page with larger turns has fewer of them than asked for, at least one."""
FIRST_STEP = 4
MAX_NUMBER = 2**31 - 1

_TYPES = tuple(
    cls.TYPE
    for cls in (
        AgentStarted,
        ModelCalled,
        ModelRetried,
        ModelFailed,
        ApprovalRequested,
        HookDecided,
        BudgetReached,
        ContextCompacted,
        MemoryRecalled,
        MemoryWritten,
        ToolStarted,
        ToolFinished,
        EffectReconciled,
        AgentOutput,
        AgentEnded,
        GoalDecomposed,
        SubtasksAwarded,
        SubtaskEnded,
    )
)


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """`next_before` is the cursor of the next page, None at the end.

    `rewinds` are those that were made after a turn of this page, newest first: each lies between its `last_number`,
    which it superseded, and the turn after that. `environments` are the generations that were begun after one, by
    their `after_number`.
    """

    session_id: str
    status: SessionStatus
    entries: tuple[HistoryEntry, ...]
    rewinds: tuple[Rewind, ...]
    environments: tuple[Environment, ...]
    next_before: int | None


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """`limits` are the Session's own; its agents may have others."""

    spending: Spending
    limits: Limits


class HistoryService:
    """Reads History and effects from the ledger alone."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def page(
        self, session_id: str, *, before: int | None = None, limit: int = 50, superseded: bool = False
    ) -> HistoryPage:
        """Turns with number < `before`, newest first, fewer than `limit` if they are large. Raises SessionNotFound."""
        bounded = max(1, min(limit, MAX_PAGE))
        return await self._ledger.read(
            lambda tx: _page(tx, session_id, before=before, limit=bounded, superseded=superseded)
        )

    async def entry(self, turn_id: str) -> HistoryEntry:
        """One turn. Raises TurnNotFound."""
        return await self._ledger.read(lambda tx: _entry(tx, turn_id=turn_id))

    async def usage(self, session_id: str) -> SessionUsage:
        """What a Session has used, also in turns that a rewind superseded; one row, however long it is.

        Raises SessionNotFound.
        """

        def body(tx: LedgerTx) -> SessionUsage:
            tx.sessions.get(session_id)
            return SessionUsage(tx.budgets.spending(session_scope(session_id)), tx.budgets.limits(session_id))

        return await self._ledger.read(body)

    async def tool_result(self, effect_id: str) -> ToolFinished:
        """The recorded result of a tool call. Raises EffectNotFound."""

        def body(tx: LedgerTx) -> ToolFinished:
            effect = tx.effects.get(effect_id)
            if effect is not None:
                spec = effect.spec
                key = tool_event_key(spec.turn_id, spec.agent, spec.position, "finished")
                stored = tx.events.find(spec.session_id, key)
                event = stored and decode_event(stored.type, stored.version, stored.payload)
                if isinstance(event, ToolFinished):
                    return event
            raise EffectNotFound(f"There is no finished tool call with the effect id {effect_id}.")

        return await self._ledger.read(body)

    async def effects(
        self,
        session_id: str,
        *,
        turn_id: str | None = None,
        state: EffectState | None = None,
        after: str | None = None,
        limit: int = MAX_PAGE,
    ) -> list[Effect]:
        """Effects of a Session, oldest first; `after` continues after the last effect of a page.

        Raises SessionNotFound, EffectNotFound (for `after`).
        """
        bounded = max(1, min(limit, MAX_PAGE))

        def body(tx: LedgerTx) -> list[Effect]:
            tx.sessions.get(session_id)
            return tx.effects.page(session_id, turn_id=turn_id, state=state, limit=bounded, after=after)

        return await self._ledger.read(body)


def _page(tx: LedgerTx, session_id: str, *, before: int | None, limit: int, superseded: bool) -> HistoryPage:
    status = tx.sessions.get(session_id).status
    entries, next_before = _page_entries(tx, session_id, before=before, limit=limit, superseded=superseded)
    last = MAX_NUMBER if before is None else before - 1
    rewinds = tx.rewinds.ending_between(session_id, next_before or 0, last)
    # Those from before the first turn belong to the page that ends the list.
    environments = tx.environments.ending_between(session_id, next_before or 0, last)
    return HistoryPage(session_id, status, tuple(entries), tuple(rewinds), tuple(environments), next_before)


def _page_entries(
    tx: LedgerTx, session_id: str, *, before: int | None, limit: int, superseded: bool
) -> tuple[list[HistoryEntry], int | None]:
    """The entries of a page, and where the next one begins."""
    entries: list[HistoryEntry] = []
    passed, held, step = 0, 0, FIRST_STEP
    while True:
        asked = min(step, limit - passed)
        turns = tx.turns.page(session_id, before_number=before, limit=asked + 1)
        shown = turns[:asked]
        wanted = [turn for turn in shown if superseded or not turn.superseded]
        sized = _sized_entries(tx, session_id, wanted)
        for turn in shown:
            if turn.turn_id in sized:
                entry, size = sized[turn.turn_id]
                held += size
                if entries and held > PAGE_BYTES:
                    return entries, before
                entries.append(entry)
            before = turn.number
        passed, step = passed + len(shown), 2 * step
        if len(turns) <= asked:
            return entries, None
        if passed >= limit:
            return entries, before


def _entry(tx: LedgerTx, *, turn_id: str) -> HistoryEntry:
    turn = tx.turns.get(turn_id)
    return _sized_entries(tx, turn.session_id, [turn])[turn_id][0]


def _sized_entries(tx: LedgerTx, session_id: str, turns: list[Turn]) -> dict[str, tuple[HistoryEntry, int]]:
    """By turn id: the entry, and the bytes of what it was made from."""
    by_turn: dict[str, list[Event]] = {turn.turn_id: [] for turn in turns}
    sizes = {turn.turn_id: len(turn.request.text.text) for turn in turns}
    for item in tx.events.read_turns(session_id, list(by_turn), types=_TYPES) if turns else ():
        turn_id = item.turn_id or ""
        by_turn[turn_id].append(decode_event(item.type, item.version, item.payload))
        sizes[turn_id] += len(item.payload)
    return {turn.turn_id: (history_entry(turn, by_turn[turn.turn_id]), sizes[turn.turn_id]) for turn in turns}
