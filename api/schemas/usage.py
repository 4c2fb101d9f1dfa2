"""Tokens and cost."""

from __future__ import annotations

from api.schemas.base import Shape
from milepost.domain.usage import Cost, Usage
from milepost.ledger.codec import decimal_text


class CostShape(Shape):
    """What was paid, exactly. Unless `complete`, it is a known subtotal: at least so much."""

    amount: str
    """In whole units of the currency, as decimal text."""
    currency: str
    complete: bool

    @classmethod
    def of(cls, cost: Cost) -> CostShape:
        return cls(amount=decimal_text(cost.amount), currency=cost.currency, complete=cost.complete)


class UsageShape(Shape):
    """Tokens in four disjoint classes. Unless `complete`, they are a known subtotal.

    `cache_write_tokens` is a part of `input_tokens`.
    """

    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    total_tokens: int
    complete: bool
    cache_write_tokens: int
    cost: CostShape

    @classmethod
    def of(cls, usage: Usage) -> UsageShape:
        return cls(
            input_tokens=usage.input_tokens,
            cached_input_tokens=usage.cached_input_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            total_tokens=usage.total_tokens,
            complete=usage.complete,
            cache_write_tokens=usage.cache_write_tokens,
            cost=CostShape.of(usage.spent),
        )
