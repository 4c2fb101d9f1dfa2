"""Limits and what was used."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field

from api.schemas.base import Body, Shape
from api.schemas.usage import CostShape, UsageShape
from milepost.domain.budgets import Limits, limits_of
from milepost.domain.usage import Cost
from milepost.ledger.codec import decimal_text
from milepost.services.history import SessionUsage

Counted = Annotated[int, Field(ge=0, le=10**15)]


class BudgetBody(Body):
    """Upper bounds; what is left out is not bounded. `cost` is decimal text in whole units of the currency."""

    tokens: Counted | None = None
    cost: Annotated[str, Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,12})?$")] | None = None
    model_calls: Counted | None = None
    tool_calls: Counted | None = None

    def limits(self) -> Limits:
        """The limits. Raises InvalidInput."""
        given = self.model_dump(exclude_none=True)
        return limits_of({name: Decimal(str(amount)) for name, amount in given.items()})


class TurnBudgetBody(BudgetBody):
    """`seconds` is wall time since the turn was accepted."""

    seconds: Annotated[float, Field(ge=0, le=10**9)] | None = None


class LimitsShape(Shape):
    """Upper bounds; null is none."""

    tokens: int | None
    cost: str | None
    model_calls: int | None
    tool_calls: int | None

    @classmethod
    def of(cls, limits: Limits) -> LimitsShape:
        return cls(
            tokens=limits.tokens,
            cost=None if limits.cost is None else decimal_text(limits.cost),
            model_calls=limits.model_calls,
            tool_calls=limits.tool_calls,
        )


class SessionUsageShape(Shape):
    """What a Session has used so far. `reserved` is held by calls under way, `assumed` was charged for lost ones."""

    session_id: str
    usage: UsageShape
    model_calls: int
    tool_calls: int
    reserved_tokens: int
    reserved_cost: CostShape
    assumed_tokens: int
    assumed_cost: CostShape
    limits: LimitsShape

    @classmethod
    def from_usage(cls, session_id: str, found: SessionUsage) -> SessionUsageShape:
        spending = found.spending
        currency = spending.usage.spent.currency
        return cls(
            session_id=session_id,
            usage=UsageShape.of(spending.usage),
            model_calls=spending.model_calls,
            tool_calls=spending.tool_calls,
            reserved_tokens=spending.reserved_tokens,
            reserved_cost=CostShape.of(Cost(spending.reserved_micros, currency)),
            assumed_tokens=spending.assumed_tokens,
            assumed_cost=CostShape.of(Cost(spending.assumed_micros, currency)),
            limits=LimitsShape.of(found.limits),
        )
