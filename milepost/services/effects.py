"""The effect journal: plan and dispatch in one transaction, outcome and events in another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from milepost.domain.approvals import Approval
from milepost.domain.effects import Effect, EffectSpec, EffectState, Resolution
from milepost.domain.errors import BudgetExceeded, TurnClaimed
from milepost.domain.events import EffectReconciled, StreamKind
from milepost.domain.turns import Turn
from milepost.engine.effects import Entry, on_entry
from milepost.engine.tokens import learnt
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.system import Clock
from milepost.services.budgeting import Answered, Ask, Beside, Crowded, reserve, settle_charged
from milepost.services.finishing import bounded_error, uncertain_event
from milepost.services.gate import Gate, Held, pass_gate
from milepost.services.outcomes import reconciled_event

EventsOfAttempt = Callable[[int], Sequence[NewEvent]]


@dataclass(frozen=True, slots=True)
class Entered:
    """What to do: `entry`, with the effect's row. `stop_requested` means that nothing was dispatched.

    `ATTACH` with a `result` in the row is an attempt that noted its outcome and did not live to settle it.
    `WAIT_FOR_PERSON` comes with the `approval` that is open and the time `at` which that is so.
    """

    entry: Entry
    effect: Effect | None
    stop_requested: bool = False
    approval: Approval | None = None
    at: int = 0
    blocked: bool = False
    """A call is at work beside which this one may not be: nothing was dispatched, ask again."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of an attempt; `result` is what re-entry returns."""

    state: EffectState
    result: bytes | None = None
    error_code: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """What a model call may use; `refused(attempt, error)` is how it ends if no budget allows it.

    `waits`: one that has no room beside calls under way comes back `blocked` instead.
    """

    ask: Ask
    refused: Callable[[int, BudgetExceeded], tuple[Settlement, Sequence[NewEvent]]]
    waits: bool = False


class EffectJournal:
    """Records effects for activities. `worker` names this process in the rows it dispatches."""

    def __init__(self, ledger: Ledger, clock: Clock, worker: str) -> None:
        self._ledger = ledger
        self._clock = clock
        self._worker = worker

    async def ask(self, spec: EffectSpec, claim: str, gate: Gate) -> Entered | None:
        """Bring a call to its gate and no further; None if it may be entered. Raises TurnClaimed."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> Entered | None:
            turn = require_claim(tx, spec.turn_id, claim)
            existing = tx.effects.get(spec.effect_id)
            entry = on_entry(existing.state if existing else None, spec.effect_class)
            if entry is Entry.RETURN_RECORDED:
                return Entered(entry, existing)
            if existing is not None and existing.attempt:
                return None
            if turn.stop_requested_at is not None:
                return Entered(entry, existing, stop_requested=True)
            held = pass_gate(tx, spec, gate, existing, now)
            return None if held is None else _held(held, now)

        return await self._ledger.write(body)

    async def enter(
        self,
        spec: EffectSpec,
        claim: str,
        events: EventsOfAttempt,
        gate: Gate | None = None,
        charge: Charge | None = None,
        blocked: Callable[[LedgerTx], bool] | None = None,
    ) -> Entered:
        """Come to an effect: dispatch it with a new fence, attach to it, or find its recorded outcome.

        `events(attempt)` are appended with the dispatch. With a gate, policy rules and approvals decide before a first
        dispatch whether there is one. `blocked` is asked before a first dispatch, too, under the Session's lock. With a
        charge, what the attempt may use is reserved in the same transaction; a
        budget that does not allow it settles the effect.

        Raises:
            TurnClaimed: the turn has ended or belongs to another run.
        """
        now = self._clock.now()

        def body(tx: LedgerTx) -> Entered:
            if blocked is not None:
                tx.turns.lock_session(spec.session_id)
            turn = require_claim(tx, spec.turn_id, claim)
            # Locked: an earlier attempt that was taken for lost may end between the look and what is made of it.
            existing = tx.effects.lock(spec.effect_id)
            entry = on_entry(existing.state if existing else None, spec.effect_class)
            if existing is not None and _is_ours(existing, self._worker, now):
                # This very dispatch was committed, and only the word of it was lost.
                return Entered(Entry.DISPATCH if existing.attempt == 1 else entry, existing)
            if entry is Entry.RETURN_RECORDED:
                return Entered(entry, existing)
            if existing is not None and existing.state is EffectState.DISPATCHED and existing.result is not None:
                # Its outcome is noted: whatever the class, there is nothing to run and something to go on with.
                entry = Entry.ATTACH
            if turn.stop_requested_at is not None and entry is not Entry.ATTACH:
                return Entered(entry, existing, stop_requested=True)
            if entry is Entry.BECOME_UNCERTAIN and existing is not None:
                lost = tx.effects.settle(spec.effect_id, existing.attempt, EffectState.UNCERTAIN, now, None)
                event = uncertain_event(lost, "The worker was lost while the call was running.")
                tx.events.append(spec.session_id, StreamKind.SESSION, [event], now)
                tx.notify(spec.session_id)
                return Entered(entry, lost)
            if gate is None and entry is Entry.WAIT_FOR_PERSON:
                return Entered(entry, existing)
            if gate is not None and not (existing and existing.attempt):
                held = pass_gate(tx, spec, gate, existing, now)
                if held is not None:
                    return _held(held, now)
                if blocked is not None and blocked(tx):
                    return Entered(Entry.DISPATCH, existing, blocked=True)
                entry = Entry.DISPATCH
            effect = tx.effects.dispatch(spec, now, self._worker)
            new = list(events(effect.attempt))
            settle_charged(tx, new, now)
            # An attempt that takes the place of one that was lost does not wait for others: they may wait for it.
            resumed = existing is not None and existing.state is EffectState.DISPATCHED
            refused = None if charge is None else self._reserve(tx, spec, effect.attempt, charge, new, now, resumed)
            tx.events.append(spec.session_id, StreamKind.SESSION, new, now)
            tx.notify(spec.session_id)
            return Entered(entry, effect) if refused is None else Entered(Entry.RETURN_RECORDED, refused)

        try:
            return await self._ledger.write(body)
        except Crowded:
            return Entered(Entry.DISPATCH, None, blocked=True)

    async def deny(self, spec: EffectSpec, claim: str, error_code: str, error_message: str) -> Entered:
        """Leave the row of a call that is not made, with what denied it; a call that has one keeps it.

        Raises TurnClaimed.
        """
        now = self._clock.now()

        def body(tx: LedgerTx) -> Entered:
            require_claim(tx, spec.turn_id, claim)
            effect = tx.effects.deny(spec, now, error_code, bounded_error(error_message))
            tx.notify(spec.session_id)
            return Entered(Entry.RETURN_RECORDED, effect)

        return await self._ledger.write(body)

    async def note(self, spec: EffectSpec, attempt: int, outcome: bytes) -> None:
        """Keep what an attempt brought before it is settled; see `Effects.note`. Raises Fenced."""
        await self._ledger.write(lambda tx: tx.effects.note(spec.effect_id, attempt, outcome))

    def _reserve(
        self, tx: LedgerTx, spec: EffectSpec, attempt: int, charge: Charge, new: list[NewEvent], at: int, resumed: bool
    ) -> Effect | None:
        """Reserve; the settled effect if the budget does not allow it. Adds to the `new` events."""
        beside = Beside.ANY if resumed else Beside.WAIT if charge.waits else Beside.REFUSE
        refusal, told = reserve(tx, spec, attempt, charge.ask, at, beside)
        new.extend(told)
        if refusal is None:
            return None
        outcome, failed = charge.refused(attempt, refusal)
        new.extend(failed)
        text = bounded_error(str(refusal))
        return tx.effects.settle(spec.effect_id, attempt, outcome.state, at, outcome.result, refusal.code, text)

    async def settle(
        self,
        spec: EffectSpec,
        attempt: int,
        outcome: Settlement,
        events: Sequence[NewEvent],
        answered: Answered | None = None,
    ) -> None:
        """Write an attempt's outcome, its events and what it is charged in one transaction.

        A late success of a turn that has ended settles the effect and is told by `effect.reconciled` alone.

        Raises:
            Fenced: a later attempt owns the effect, or the turn has settled it otherwise.
        """
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            message = None if outcome.error_message is None else bounded_error(outcome.error_message)
            before = tx.effects.lock(spec.effect_id)
            known = None if before is None else (before.state, before.attempt, before.finished_at)
            if known == (outcome.state, attempt, now):
                # This very outcome was committed, and only the word of it was lost.
                return
            settled = tx.effects.settle(
                spec.effect_id, attempt, outcome.state, now, outcome.result, outcome.error_code, message
            )
            extra = []
            if outcome.state is EffectState.UNCERTAIN:
                extra.append(uncertain_event(settled, outcome.error_message or "The outcome is unknown."))
            elif before is not None and before.state is EffectState.UNCERTAIN:
                extra.append(self._late(spec, outcome))
            ended = tx.turns.get(spec.turn_id).state.terminal
            extra += settle_charged(tx, events, now, answered)
            if answered is not None:
                _learn(tx, answered, now)
            tx.events.append(spec.session_id, StreamKind.SESSION, extra if ended else [*extra, *events], now)
            tx.notify(spec.session_id)

        await self._ledger.write(body)

    def _late(self, spec: EffectSpec, outcome: Settlement) -> NewEvent:
        why = f"The attempt that was taken for lost ended: {outcome.state}."
        late = EffectReconciled(spec.turn_id, spec.effect_id, Resolution.LATE.value, self._worker, why)
        return reconciled_event(late)

    async def record(self, session_id: str, turn_id: str, claim: str, events: Sequence[NewEvent]) -> None:
        """Append events of a turn that belong to no dispatched effect. Raises TurnClaimed."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            require_claim(tx, turn_id, claim)
            settle_charged(tx, events, now)
            tx.events.append(session_id, StreamKind.SESSION, events, now)
            tx.notify(session_id)

        await self._ledger.write(body)


def _learn(tx: LedgerTx, answered: Answered, at: int) -> None:
    ask = answered.ask
    if answered.reported_input is None:
        return
    known = tx.budgets.factor(ask.provider, ask.model)
    factor, samples = learnt(*known, ask.estimate, answered.reported_input)
    if samples != known[1]:
        tx.budgets.save_factor(ask.provider, ask.model, factor, samples, at)


def _is_ours(effect: Effect, worker: str, at: int) -> bool:
    return effect.state is EffectState.DISPATCHED and (effect.worker, effect.dispatched_at) == (worker, at)


def _held(held: Held, at: int) -> Entered:
    entry = Entry.RETURN_RECORDED if held.approval is None else Entry.WAIT_FOR_PERSON
    return Entered(entry, held.effect, approval=held.approval, at=at)


def require_claim(tx: LedgerTx, turn_id: str, claim: str) -> Turn:
    """The turn, if it runs and belongs to this workflow run. Raises TurnClaimed."""
    turn = tx.turns.get(turn_id)
    if turn.state.terminal:
        raise TurnClaimed(f"Turn {turn_id} has ended ({turn.state}).")
    if turn.claimed_run != claim:
        raise TurnClaimed(f"Turn {turn_id} belongs to another workflow run.")
    return turn
