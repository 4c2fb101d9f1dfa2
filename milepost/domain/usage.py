"""Token usage in four disjoint classes, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

DEFAULT_CURRENCY = "USD"
MICROS = 1_000_000


@dataclass(frozen=True, slots=True)
class Cost:
    """An exact amount of money in millionths of `currency` (ISO 4217), fractions included.

    `complete` is sticky: once any part is unknown, a sum is a known subtotal ("at least") and says so. What was paid in
    another currency is not converted and leaves a sum incomplete.
    """

    micros: Decimal = Decimal(0)
    currency: str = DEFAULT_CURRENCY
    complete: bool = True

    def __add__(self, other: Cost) -> Cost:
        complete = self.complete and other.complete
        if not self.micros:
            return replace(other, complete=complete)
        if not other.micros:
            return replace(self, complete=complete)
        if self.currency != other.currency:
            return replace(self, complete=False)
        return Cost(self.micros + other.micros, self.currency, complete)

    @property
    def amount(self) -> Decimal:
        """The amount in whole units of the currency, exact."""
        return self.micros / MICROS


UNKNOWN_COST = Cost(complete=False)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or several model calls.

    The four classes are disjoint: a cached input token is not counted in `input_tokens`, a reasoning token is not
    counted in `output_tokens`. `complete` is sticky: once any part is unknown, a sum is a known subtotal and says so.

    `cache_write_tokens` is no fifth class but a part of `input_tokens`: those that the provider also wrote into its
    prompt cache, which some providers charge differently (0 <= cache_write_tokens <= input_tokens).

    `cost` is None for tokens that nobody has priced yet; see `spent`.
    """

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    complete: bool = True
    cache_write_tokens: int = 0
    cost: Cost | None = None

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.complete and other.complete,
            self.cache_write_tokens + other.cache_write_tokens,
            None if self.cost is None and other.cost is None else self.spent + other.spent,
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.cached_input_tokens + self.output_tokens + self.reasoning_tokens

    @property
    def spent(self) -> Cost:
        """What was paid: `cost`; without one nothing if nothing was used, else unknown."""
        if self.cost is not None:
            return self.cost
        return UNKNOWN_COST if self.total_tokens or not self.complete else Cost()


UNKNOWN_USAGE = Usage(complete=False)
