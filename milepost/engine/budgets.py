"""What a budget allows. Pure: rows in, rows and refusals out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from milepost.domain.budgets import Budget, Excess, Limits, Overflow, Reservation, ReservationState, Spending, Window
from milepost.domain.teams import budget_owner
from milepost.domain.usage import MICROS, Usage

_FORMATS = {Window.DAY: "%Y-%m-%d", Window.MONTH: "%Y-%m"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit that a call would go over, or is over. `scope` is call, turn, session or agent."""

    scope: str
    limit: str
    used: Decimal
    asked: Decimal
    of: Decimal
    unknown_price: bool = False

    @property
    def text(self) -> str:
        """One sentence with the numbers."""
        if self.unknown_price:
            return f"The {self.scope} has a cost limit, but the price of the model is unknown."
        what = "cost" if self.limit == "cost" else self.limit.replace("_", " ")
        asked = f", and this call may need {self.asked:,}" if self.asked else ""
        return f"The {self.scope} may use {self.of:,} ({what}): {self.used:,} are used{asked}."


def session_scope(session_id: str) -> str:
    """Name of a Session's row."""
    return f"session/{session_id}"


def scopes(budget: Budget, session_id: str, turn_id: str, agent: str, at: int) -> dict[str, Limits]:
    """The rows a call counts in, with their limits; the Session's always, others only if they have any.

    `agent` is a part of the turn (`domain.teams`); what it uses counts for the agent that is configured.
    """
    found = {session_scope(session_id): budget.session}
    if budget.turn.any:
        found[f"turn/{turn_id}"] = budget.turn
    if budget.agent.any:
        form = _FORMATS.get(budget.agent_window)
        moment = _EPOCH + timedelta(microseconds=at)
        found[f"agent/{budget_owner(agent)}/{moment.strftime(form) if form else budget.agent_window.value}"] = (
            budget.agent
        )
    return found


def breach_of_call(limits: Limits, tokens: int, micros: Decimal | None) -> Breach | None:
    """The limit of a single call that it may go over."""
    return next(_breaches("call", limits, Spending(), tokens, micros, calls=0), None)


def breach_of_time(limits: Limits, elapsed: float) -> Breach | None:
    """The turn's time limit, if it has passed."""
    if limits.seconds is None or elapsed < limits.seconds:
        return None
    used = Decimal(elapsed).quantize(Decimal("0.1"))
    return Breach("turn", "seconds", used, Decimal(0), Decimal(str(limits.seconds)))


def breach(scope: str, limits: Limits, spending: Spending, tokens: int, micros: Decimal | None) -> Breach | None:
    """The limit that one more model call would go over, or that is used up."""
    return next(_breaches(scope.partition("/")[0], limits, spending, tokens, micros, calls=1), None)


def _breaches(
    scope: str, limits: Limits, spending: Spending, tokens: int, micros: Decimal | None, *, calls: int
) -> Iterator[Breach]:
    if limits.cost is not None and micros is None:
        yield Breach(scope, "cost", Decimal(0), Decimal(0), limits.cost, unknown_price=True)
    asked = {"tokens": Decimal(tokens), "cost": (micros or Decimal(0)) / MICROS, "model_calls": Decimal(calls)}
    for name, used, limit in _measured(limits, spending):
        more = asked.get(name, Decimal(0))
        if name in asked and used + more > limit:
            yield Breach(scope, name, used, more, limit)


def crowded(
    limits: Limits, spending: Spending, asked: Excess, held: Sequence[Excess], tokens: int, micros: Decimal
) -> bool:
    """Whether a call has no room beside those under way, all of which may use more than they have reserved.

    `tokens` and `micros` are what it reserves itself. What all of them but one may use beyond their reservations has to
    fit the limit: so it is passed by what one call uses beyond its own, and never by more. A call that is alone fits.
    """
    for limit, used, all_of in (
        (limits.tokens, Decimal(spending.tokens + tokens), [Decimal(each.tokens) for each in (asked, *held)]),
        (
            None if limits.cost is None else limits.cost * MICROS,
            spending.micros + micros,
            [each.micros for each in (asked, *held)],
        ),
    ):
        if limit is not None and used + sum(all_of) - max(all_of) > limit:
            return True
    return False


def breach_of_tools(scope: str, limits: Limits, spending: Spending, calls: int) -> Breach | None:
    """The limit that so many more tool calls would go over."""
    if limits.tool_calls is None or spending.tool_calls + calls <= limits.tool_calls:
        return None
    kind = scope.partition("/")[0]
    return Breach(kind, "tool_calls", Decimal(spending.tool_calls), Decimal(calls), Decimal(limits.tool_calls))


def reached(limits: Limits, spending: Spending, percent: int) -> Iterator[tuple[str, int, Decimal, Decimal]]:
    """Limits of which `percent` or all is used and nobody was told: (limit, percent, used, of)."""
    for name, used, limit in _measured(limits, spending):
        for level in (percent, 100):
            if used * 100 >= limit * level and used and mark(name, level) not in spending.told:
                yield name, level, used, limit


def mark(limit: str, percent: int) -> str:
    """How `told` names an alert."""
    return f"{limit}:{percent}"


def _measured(limits: Limits, spending: Spending) -> Iterator[tuple[str, Decimal, Decimal]]:
    """(limit, used, of) of every limit that counts something."""
    used = {
        "tokens": Decimal(spending.tokens),
        "cost": spending.micros / MICROS,
        "model_calls": Decimal(spending.model_calls),
        "tool_calls": Decimal(spending.tool_calls),
    }
    for name, amount in used.items():
        limit = getattr(limits, name)
        if limit is not None:
            yield name, amount, Decimal(limit)


def remaining_tokens(limits: Limits, spending: Spending) -> int | None:
    """Tokens that a limit leaves; None without one."""
    return None if limits.tokens is None else max(limits.tokens - spending.tokens, 0)


def with_reserved(spending: Spending, tokens: int, micros: Decimal | None) -> Spending:
    """After an attempt was begun."""
    return replace(
        spending,
        model_calls=spending.model_calls + 1,
        reserved_tokens=spending.reserved_tokens + tokens,
        reserved_micros=spending.reserved_micros + (micros or 0),
    )


def with_settled(spending: Spending, held: Reservation, usage: Usage, tool_calls: int) -> Spending:
    """After an attempt ended. What is not known of it is charged as it was reserved."""
    micros = held.micros or Decimal(0)
    tokens = 0 if usage.complete else max(held.tokens - usage.total_tokens, 0)
    cost = Decimal(0) if usage.spent.complete else max(micros - usage.spent.micros, Decimal(0))
    return replace(
        spending,
        usage=spending.usage + usage,
        tool_calls=spending.tool_calls + tool_calls,
        assumed_tokens=spending.assumed_tokens + tokens,
        assumed_micros=spending.assumed_micros + cost,
        reserved_tokens=spending.reserved_tokens - held.tokens,
        reserved_micros=spending.reserved_micros - micros,
    )


def settled_state(usage: Usage) -> ReservationState:
    """The state of a reservation after its attempt ended."""
    return ReservationState.SETTLED if usage.complete and usage.spent.complete else ReservationState.ASSUMED


def aborts(budget: Budget) -> bool:
    """Whether a limit that is met ends the turn."""
    return budget.overflow is Overflow.ABORT
