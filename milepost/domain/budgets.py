"""Budgets: how much a call, a turn, a Session or an agent may use, and what they have used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import TypeVar

from milepost.domain.errors import InvalidInput
from milepost.domain.usage import Usage

T = TypeVar("T", int, float, Decimal)

DEFAULT_ALERT_PERCENT = 80
DEFAULT_OUTPUT_TOKENS = 4096
"""Reserved for an answer whose length nothing bounds."""


COUNTED = ("tokens", "model_calls", "tool_calls")
LIMIT_NAMES = (*COUNTED, "cost", "seconds")
MAX_LIMIT = 10**15
COST_DECIMALS = 12


class Overflow(StrEnum):
    """What a limit does when it is met: end the turn, or only say so."""

    ABORT = "abort"
    WARN = "warn"


class Window(StrEnum):
    """The time over which an agent's use counts; days and months begin at midnight UTC."""

    TOTAL = "total"
    MONTH = "month"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds; None is none. `tokens` counts all four classes, `cost` is in whole units of the currency.

    `model_calls` counts every attempt. `seconds` is wall time since a turn was accepted or a call began.
    """

    tokens: int | None = None
    cost: Decimal | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    seconds: float | None = None

    @property
    def any(self) -> bool:
        return self != Limits()

    def tightened(self, other: Limits) -> Limits:
        """The lower one of each bound."""
        return Limits(
            tokens=_lower(self.tokens, other.tokens),
            cost=_lower(self.cost, other.cost),
            model_calls=_lower(self.model_calls, other.model_calls),
            tool_calls=_lower(self.tool_calls, other.tool_calls),
            seconds=_lower(self.seconds, other.seconds),
        )


def limits_of(amounts: Mapping[str, Decimal]) -> Limits:
    """Limits by name.

    Raises:
        InvalidInput: an unknown name, a negative amount, a fraction of something that is counted, or more than
            `COST_DECIMALS` decimal places.
    """
    for name, amount in amounts.items():
        if name not in LIMIT_NAMES:
            raise InvalidInput(f"There is no limit '{name}'.", field="budget", fix=f"Known: {', '.join(LIMIT_NAMES)}.")
        if not amount.is_finite() or not 0 <= amount <= MAX_LIMIT:
            raise InvalidInput(f"The limit of {name} must be 0 to {MAX_LIMIT:,}.", field="budget")
        if _decimals(amount) > COST_DECIMALS:
            raise InvalidInput(f"The limit of {name} has over {COST_DECIMALS} decimal places.", field="budget")
        if name in COUNTED and amount != int(amount):
            raise InvalidInput(f"The limit of {name} must be a whole number.", field="budget")

    def count(name: str) -> int | None:
        return int(amounts[name]) if name in amounts else None

    seconds = amounts.get("seconds")
    return Limits(
        tokens=count("tokens"),
        cost=amounts.get("cost"),
        model_calls=count("model_calls"),
        tool_calls=count("tool_calls"),
        seconds=None if seconds is None else float(seconds),
    )


def _decimals(amount: Decimal) -> int:
    exponent = amount.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


def _lower(one: T | None, other: T | None) -> T | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits that hold for an agent's calls in a turn. Of `call` only tokens, cost and seconds have a meaning.

    `output_tokens` are reserved for an answer that has no `max_tokens`.
    """

    call: Limits = Limits()
    turn: Limits = Limits()
    session: Limits = Limits()
    agent: Limits = Limits()
    agent_window: Window = Window.TOTAL
    overflow: Overflow = Overflow.ABORT
    alert_percent: int = DEFAULT_ALERT_PERCENT
    output_tokens: int = DEFAULT_OUTPUT_TOKENS


@dataclass(frozen=True, slots=True)
class Spending:
    """What a scope has used. `told` names the alerts that were given.

    `assumed_tokens` and `assumed_micros` are charged for attempts whose end is unknown, beyond what `usage` knows of
    them. `reserved_*` belong to attempts under way.
    """

    usage: Usage = field(default_factory=Usage)
    model_calls: int = 0
    tool_calls: int = 0
    assumed_tokens: int = 0
    assumed_micros: Decimal = Decimal(0)
    reserved_tokens: int = 0
    reserved_micros: Decimal = Decimal(0)
    told: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens that count against a limit."""
        return self.usage.total_tokens + self.assumed_tokens + self.reserved_tokens

    @property
    def micros(self) -> Decimal:
        """Millionths of the currency that count against a limit."""
        return self.usage.spent.micros + self.assumed_micros + self.reserved_micros


@dataclass(frozen=True, slots=True)
class Excess:
    """What an attempt may use beyond its reservation, as far as anybody can say."""

    tokens: int = 0
    micros: Decimal = Decimal(0)


class ReservationState(StrEnum):
    OPEN = "open"
    SETTLED = "settled"
    ASSUMED = "assumed"
    """Settled without knowing what was used: charged as reserved."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one attempt of a model call may use, held in every scope of `scopes` until its end is known.

    `micros` is None if nobody knows the price.
    """

    effect_id: str
    attempt: int
    session_id: str
    turn_id: str
    agent: str
    scopes: tuple[str, ...]
    tokens: int
    micros: Decimal | None
    state: ReservationState = ReservationState.OPEN
    excess: Excess = Excess()
