"""The effect journal: plan and dispatch in one transaction, outcome and events in another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from milepost.domain.effects import Effect, EffectSpec, EffectState
from milepost.domain.errors import TurnClaimed
from milepost.domain.events import StreamKind
from milepost.domain.turns import Turn
from milepost.engine.effects import Entry, on_entry
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.system import Clock
from milepost.services.finishing import bounded_error, uncertain_event

EventsOfAttempt = Callable[[int], Sequence[NewEvent]]


@dataclass(frozen=True, slots=True)
class Entered:
    """What to do: `entry`, with the effect's row. `stop_requested` means that nothing was dispatched."""

    entry: Entry
    effect: Effect | None
    stop_requested: bool = False


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of an attempt; `result` is what re-entry returns."""

    state: EffectState
    result: bytes | None = None
    error_code: str | None = None
    error_message: str | None = None


class EffectJournal:
    """Records effects for activities. `worker` names this process in the rows it dispatches."""

    def __init__(self, ledger: Ledger, clock: Clock, worker: str) -> None:
        self._ledger = ledger
        self._clock = clock
        self._worker = worker

    async def enter(self, spec: EffectSpec, claim: str, events: EventsOfAttempt) -> Entered:
        """Come to an effect: dispatch it with a new fence, attach to it, or find its recorded outcome.

        `events(attempt)` are appended with the dispatch.

        Raises:
            TurnClaimed: the turn has ended or belongs to another run.
        """
        now = self._clock.now()

        def body(tx: LedgerTx) -> Entered:
            turn = require_claim(tx, spec.turn_id, claim)
            existing = tx.effects.get(spec.effect_id)
            entry = on_entry(existing.state if existing else None, spec.effect_class)
            if entry in (Entry.RETURN_RECORDED, Entry.WAIT_FOR_PERSON):
                return Entered(entry, existing)
            if turn.stop_requested_at is not None and entry is not Entry.ATTACH:
                return Entered(entry, existing, stop_requested=True)
            if entry is Entry.BECOME_UNCERTAIN and existing is not None:
                lost = tx.effects.settle(spec.effect_id, existing.attempt, EffectState.UNCERTAIN, now, None)
                event = uncertain_event(lost, "The worker was lost while the call was running.")
                tx.events.append(spec.session_id, StreamKind.SESSION, [event], now)
                tx.notify(spec.session_id)
                return Entered(entry, lost)
            effect = tx.effects.dispatch(spec, now, self._worker)
            tx.events.append(spec.session_id, StreamKind.SESSION, events(effect.attempt), now)
            tx.notify(spec.session_id)
            return Entered(entry, effect)

        return await self._ledger.write(body)

    async def settle(self, spec: EffectSpec, attempt: int, outcome: Settlement, events: Sequence[NewEvent]) -> None:
        """Write an attempt's outcome and its events in one transaction.

        Raises:
            Fenced: a later attempt owns the effect.
            TurnNotRunning: the turn ended meanwhile; nothing of it is appended any more.
        """
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            message = None if outcome.error_message is None else bounded_error(outcome.error_message)
            settled = tx.effects.settle(
                spec.effect_id, attempt, outcome.state, now, outcome.result, outcome.error_code, message
            )
            extra = []
            if outcome.state is EffectState.UNCERTAIN:
                extra.append(uncertain_event(settled, outcome.error_message or "The outcome is unknown."))
            tx.events.append(spec.session_id, StreamKind.SESSION, [*extra, *events], now)
            tx.notify(spec.session_id)

        await self._ledger.write(body)

    async def record(self, session_id: str, turn_id: str, claim: str, events: Sequence[NewEvent]) -> None:
        """Append events of a turn that belong to no dispatched effect. Raises TurnClaimed."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            require_claim(tx, turn_id, claim)
            tx.events.append(session_id, StreamKind.SESSION, events, now)
            tx.notify(session_id)

        await self._ledger.write(body)


def require_claim(tx: LedgerTx, turn_id: str, claim: str) -> Turn:
    """The turn, if it runs and belongs to this workflow run. Raises TurnClaimed."""
    turn = tx.turns.get(turn_id)
    if turn.state.terminal:
        raise TurnClaimed(f"Turn {turn_id} has ended ({turn.state}).")
    if turn.claimed_run != claim:
        raise TurnClaimed(f"Turn {turn_id} belongs to another workflow run.")
    return turn
