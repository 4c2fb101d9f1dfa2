"""The `budget` of an agent."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from milepost.config.sections import Count, Section
from milepost.domain.budgets import (
    DEFAULT_ALERT_PERCENT,
    DEFAULT_OUTPUT_TOKENS,
    Overflow,
    Window,
    limits_of,
)
from milepost.domain.errors import InvalidInput


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false.")
    return value


def _checked(amounts: dict[Any, Decimal]) -> dict[Any, Decimal]:
    try:
        limits_of(amounts)
    except InvalidInput as error:
        raise ValueError(str(error)) from None
    return amounts


Amount = Annotated[Decimal, BeforeValidator(_no_bool), Field(ge=0, allow_inf_nan=False)]
CallLimits = Annotated[dict[Literal["tokens", "cost", "seconds"], Amount], AfterValidator(_checked)]
TurnLimits = Annotated[
    dict[Literal["tokens", "cost", "model_calls", "tool_calls", "seconds"], Amount], AfterValidator(_checked)
]
Totals = Annotated[dict[Literal["tokens", "cost", "model_calls", "tool_calls"], Amount], AfterValidator(_checked)]


class BudgetSection(Section):
    """Limits by name: tokens (all classes), cost, model_calls (every attempt), tool_calls, seconds."""

    call: CallLimits = Field(default_factory=dict)
    """Of one model call."""
    turn: TurnLimits = Field(default_factory=dict)
    """Of one turn."""
    session: Totals = Field(default_factory=dict)
    """Of a Session that the agent works in."""
    agent: Totals = Field(default_factory=dict)
    """Of the agent in all Sessions."""
    agent_window: Window = Window.TOTAL
    """Over which the agent's use counts."""
    overflow: Overflow = Overflow.ABORT
    """What happens when a limit is met: the turn ends, or History says so."""
    alert_percent: Annotated[Count, Field(ge=1, le=100)] = DEFAULT_ALERT_PERCENT
    """Of a limit, at which an event tells."""
    output_tokens: Annotated[Count, Field(ge=1, le=10_000_000)] = DEFAULT_OUTPUT_TOKENS
    """Reserved for an answer whose length `sampling.max_tokens` does not bound."""
