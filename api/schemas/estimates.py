"""What a turn may use, before it is begun."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Body, Shape
from api.schemas.sessions import AgentName
from api.schemas.usage import UsageShape
from milepost.domain.budgets import Limits
from milepost.ledger.codec import decimal_text
from milepost.services.estimates import TurnEstimate


class EstimateBody(Body):
    """The request that would be sent."""

    text: Annotated[str, Field(min_length=1, max_length=4 * 1024 * 1024)]
    agent: AgentName | None = None


class CallShape(Shape):
    """A model call that is sure; its output is what it may write at most."""

    agent: str
    provider: str
    model: str
    usage: UsageShape


class TurnLimitsShape(Shape):
    """The tightest limits of a turn that its agents have; null: none."""

    tokens: int | None
    cost: str | None
    model_calls: int | None
    tool_calls: int | None
    seconds: float | None

    @classmethod
    def of(cls, limits: Limits) -> TurnLimitsShape:
        return cls(
            tokens=limits.tokens,
            cost=None if limits.cost is None else decimal_text(limits.cost),
            model_calls=limits.model_calls,
            tool_calls=limits.tool_calls,
            seconds=limits.seconds,
        )


class EstimateShape(Shape):
    """`first` are the calls that are sure and `least` their sum. `earlier` is the mean of `turns` turns of the Session
    that completed; null without any."""

    first: list[CallShape]
    least: UsageShape
    earlier: UsageShape | None
    turns: int
    limits: TurnLimitsShape

    @classmethod
    def of(cls, found: TurnEstimate) -> EstimateShape:
        calls = [
            CallShape(agent=call.agent, provider=call.provider, model=call.model, usage=UsageShape.of(call.usage))
            for call in found.first
        ]
        return cls(
            first=calls,
            least=UsageShape.of(found.least),
            earlier=None if found.earlier is None else UsageShape.of(found.earlier),
            turns=found.turns,
            limits=TurnLimitsShape.of(found.limits),
        )
