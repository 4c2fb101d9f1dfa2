"""Budgets inside the caller's transaction: reserve with the dispatch, settle with the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum

from milepost.domain.budgets import Budget, Excess, Limits, Reservation, Spending
from milepost.domain.effects import EffectSpec
from milepost.domain.errors import BudgetExceeded
from milepost.domain.events import BudgetReached, ContextCompacted, ModelCalled, ModelFailed, ModelRetried
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.engine import budgets as rules
from milepost.ledger.codec import decimal_text
from milepost.ports.ledger import LedgerTx, NewEvent

CHARGED = (ModelCalled, ModelRetried, ModelFailed, ContextCompacted)


@dataclass(frozen=True, slots=True)
class Ask:
    """What an attempt of a model call may use, under which budget. `micros` is None for an unknown price.

    `estimate` is the input as it was estimated without the learnt factor of `provider` and `model`.
    `elapsed` is seconds since the turn was accepted. `excess` is what it may use beyond `tokens` and `micros` at most.
    """

    budget: Budget
    agent: str
    tokens: int
    micros: Decimal | None
    provider: str = ""
    model: str = ""
    estimate: float = 0.0
    elapsed: float = 0.0
    excess: Excess = field(default_factory=Excess)


class Beside(StrEnum):
    """What becomes of a call that might pass a limit together with others under way."""

    ANY = "any"
    """It is made: its place was given to it before."""
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Answered:
    """What a call that was answered tells a budget beside its usage."""

    ask: Ask
    tool_calls: int = 0
    reported_input: int | None = None


class Crowded(Exception):
    """A call that has no room beside those under way: ask again when one of them has ended."""


def reserve(
    tx: LedgerTx, spec: EffectSpec, attempt: int, ask: Ask, at: int, beside: Beside = Beside.ANY
) -> tuple[BudgetExceeded | None, list[NewEvent]]:
    """Hold what an attempt may use in every scope it counts in; or say why it may not be made.

    The events tell of limits that are reached. The attempt before it, if nobody ended it, has been settled.
    Raises Crowded for `Beside.WAIT`; nothing of the transaction may stay.
    """
    limited = rules.scopes(ask.budget, spec.session_id, spec.turn_id, ask.agent, at)
    states = tx.budgets.lock(limited, at)
    breach = rules.breach_of_call(ask.budget.call, ask.tokens, ask.micros)
    breach = breach or rules.breach_of_time(ask.budget.turn, ask.elapsed)
    for scope, limits in limited.items():
        breach = breach or rules.breach(scope, limits, states[scope], ask.tokens, ask.micros)
    if breach is not None and rules.aborts(ask.budget):
        return exceeded(tx, breach, ask.agent, spec.turn_id), []
    crowded = None if beside is Beside.ANY or not rules.aborts(ask.budget) else _crowded(tx, limited, states, ask)
    if crowded is not None:
        if beside is Beside.WAIT:
            raise Crowded
        text = f"The {crowded.partition('/')[0]} has no room for this call beside those under way, which may use it up."
        return BudgetExceeded(text, fix="Raise the limit, or set `sampling.max_tokens` of the agents."), []
    states = {scope: rules.with_reserved(state, ask.tokens, ask.micros) for scope, state in states.items()}
    held = Reservation(
        effect_id=spec.effect_id,
        attempt=attempt,
        session_id=spec.session_id,
        turn_id=spec.turn_id,
        agent=ask.agent,
        scopes=tuple(sorted(limited)),
        tokens=ask.tokens,
        micros=ask.micros,
        excess=ask.excess,
    )
    tx.budgets.reserve(held, at)
    events = _alerts(limited, states, ask, spec.turn_id)
    if breach is not None and (breach.scope == "call" or breach.limit == "seconds"):
        place = f"{spec.effect_id}/{attempt}"
        used = breach.used + breach.asked
        events.append(_reached(ask, spec.turn_id, breach.scope, breach.limit, 100, used, breach.of, place))
    tx.budgets.save(states, at)
    return None, events


def _crowded(tx: LedgerTx, limited: Mapping[str, Limits], states: Mapping[str, Spending], ask: Ask) -> str | None:
    """The scope that has no room for a call beside others."""
    bound = {scope: limits for scope, limits in limited.items() if limits.tokens is not None or limits.cost is not None}
    held = tx.budgets.open_with_excess(bound) if bound else []
    for scope, limits in bound.items():
        others = [each.excess for each in held if scope in each.scopes]
        if others and rules.crowded(limits, states[scope], ask.excess, others, ask.tokens, ask.micros or Decimal(0)):
            return scope
    return None


def exceeded(tx: LedgerTx, breach: rules.Breach, agent: str, turn_id: str) -> BudgetExceeded:
    """The error of a call that a budget does not allow."""
    where = {"session": "the Session's limits"}.get(breach.scope, f"agents.{agent}.budget.{breach.scope}")
    if breach.scope == "turn":
        requested = tx.turns.get(turn_id).request.options.budget
        asked = getattr(requested, breach.limit) if requested is not None else None
        if asked is not None and Decimal(str(asked)) == breach.of:
            where = "the budget of the turn's request"
    fix = "Set the model's price under `prices`." if breach.unknown_price else f"Raise {where} ({breach.limit})."
    return BudgetExceeded(breach.text, fix=fix)


def settle_charged(
    tx: LedgerTx, events: Iterable[NewEvent], at: int, answered: Answered | None = None
) -> list[NewEvent]:
    """End the reservations of the attempts that these events charge; return events of limits that are reached.

    Raises:
        BudgetExceeded: the answer asks for more tool calls than a limit leaves; nothing of the transaction may stay.
    """
    used: dict[tuple[str, int], Usage] = {}
    turns: dict[tuple[str, int], str] = {}
    for item in events:
        event = item.event
        if isinstance(event, CHARGED) and event.effect_id:
            key = (event.effect_id, event.attempt)
            used[key] = used.get(key, Usage()) + event.usage
            turns[key] = event.turn_id
    told: list[NewEvent] = []
    for (effect_id, attempt), usage in used.items():
        held = tx.budgets.settle(effect_id, attempt, rules.settled_state(usage), at)
        if held is not None:
            told += _settle(tx, held, usage, at, answered)
    return told


def settle_attempt(tx: LedgerTx, effect_id: str, attempt: int, usage: Usage, at: int) -> None:
    """End the reservation of an attempt that no event of a turn tells of; one that has ended stays as it is."""
    held = tx.budgets.settle(effect_id, attempt, rules.settled_state(usage), at)
    if held is not None:
        _settle(tx, held, usage, at, None)


def settle_rest(tx: LedgerTx, turn_id: str, at: int) -> None:
    """Charge what attempts of an ending turn still hold, since nobody will say what they used; forget the others."""
    for held in tx.budgets.open_of_turn(turn_id):
        if tx.budgets.settle(held.effect_id, held.attempt, rules.settled_state(UNKNOWN_USAGE), at) is not None:
            _settle(tx, held, UNKNOWN_USAGE, at, None)
    tx.budgets.forget(turn_id)


def _settle(tx: LedgerTx, held: Reservation, usage: Usage, at: int, answered: Answered | None) -> list[NewEvent]:
    tool_calls = answered.tool_calls if answered else 0
    before = tx.budgets.lock(held.scopes, at)
    states = {scope: rules.with_settled(state, held, usage, tool_calls) for scope, state in before.items()}
    told: list[NewEvent] = []
    if answered is not None:
        limited = rules.scopes(answered.ask.budget, held.session_id, held.turn_id, held.agent, at)
        # On the locked rows, since answers of turns that share a limit may come at the same time.
        _check_tools(tx, answered, limited, before, held.turn_id)
        told = _alerts(limited, states, answered.ask, held.turn_id)
    tx.budgets.save(states, at)
    return told


def _alerts(limited: Mapping[str, Limits], states: dict[str, Spending], ask: Ask, turn_id: str) -> list[NewEvent]:
    """Events of limits that are reached; marks them as told in `states`."""
    events: list[NewEvent] = []
    for scope, limits in limited.items():
        if scope not in states:
            continue  # a new day or month has begun since
        found = list(rules.reached(limits, states[scope], ask.budget.alert_percent))
        for limit, percent, used, of in found:
            events.append(_reached(ask, turn_id, scope.partition("/")[0], limit, percent, used, of, scope))
        marks = tuple(rules.mark(limit, percent) for limit, percent, _, _ in found)
        states[scope] = replace(states[scope], told=(*states[scope].told, *marks))
    return events


def _reached(
    ask: Ask, turn_id: str, scope: str, limit: str, percent: int, used: Decimal, of: Decimal, of_what: str
) -> NewEvent:
    event = BudgetReached(
        turn_id=turn_id,
        agent=ask.agent,
        scope=scope,
        limit=limit,
        percent=percent,
        used=decimal_text(used),
        of=decimal_text(of),
        overflow=ask.budget.overflow,
    )
    return NewEvent(f"{turn_id}/budget/{of_what}/{limit}/{percent}", event, turn_id)


def _check_tools(
    tx: LedgerTx, answered: Answered, limited: Mapping[str, Limits], states: Mapping[str, Spending], turn_id: str
) -> None:
    if not answered.tool_calls or not rules.aborts(answered.ask.budget):
        return
    for scope, limits in limited.items():
        # A new day or month may have begun since the reservation.
        breach = rules.breach_of_tools(scope, limits, states.get(scope, Spending()), answered.tool_calls)
        if breach is not None:
            raise exceeded(tx, breach, answered.ask.agent, turn_id)
