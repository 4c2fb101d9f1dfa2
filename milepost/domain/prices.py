"""What a model's tokens cost. Values only; where prices come from is configuration (docs/money.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from milepost.domain.usage import DEFAULT_CURRENCY, UNKNOWN_COST, Cost, Usage

PRICE_DECIMALS = 6
"""Decimal places of a price per million tokens; so a cost has at most twelve, and sums are exact."""


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Prices per million tokens, which is the same number as millionths of the currency per token.

    `cache_write` is the whole price of an input token that is also written to the provider's cache; the other input
    tokens cost `input`. `call` is paid per million calls, whatever they use.
    """

    input: Decimal
    cached_input: Decimal
    output: Decimal
    reasoning: Decimal
    cache_write: Decimal
    call: Decimal = Decimal(0)

    @property
    def free(self) -> bool:
        """Whether nothing costs anything."""
        return not any((self.input, self.cached_input, self.output, self.reasoning, self.cache_write, self.call))

    def micros(self, usage: Usage) -> Decimal:
        """Millionths of the currency that one call's known tokens cost."""
        written = min(usage.cache_write_tokens, usage.input_tokens)
        return (
            self.input * (usage.input_tokens - written)
            + self.cache_write * written
            + self.cached_input * usage.cached_input_tokens
            + self.output * usage.output_tokens
            + self.reasoning * usage.reasoning_tokens
            + self.call
        )


@dataclass(frozen=True, slots=True)
class PriceTier:
    """Prices of a call whose input (cached tokens included) is above a number of tokens; they hold for all of it."""

    above_input_tokens: int
    prices: TokenPrices


@dataclass(frozen=True, slots=True)
class ModelPrices:
    """The prices of one model. `version` names the list they are from; `tiers` ascend."""

    version: str
    base: TokenPrices
    currency: str = DEFAULT_CURRENCY
    tiers: tuple[PriceTier, ...] = ()

    def at(self, input_tokens: int) -> TokenPrices:
        """The prices of a call with so many input tokens."""
        found = self.base
        for tier in self.tiers:
            if input_tokens > tier.above_input_tokens:
                found = tier.prices
        return found

    def cost(self, usage: Usage) -> Cost:
        """The cost of one call; a known subtotal where its usage is one, unless nothing costs anything."""
        prices = self.at(usage.input_tokens + usage.cached_input_tokens)
        free = self.base.free and all(tier.prices.free for tier in self.tiers)
        return Cost(prices.micros(usage), self.currency, usage.complete or free)


def flat(price: Decimal) -> TokenPrices:
    """The same price for every class."""
    return TokenPrices(price, price, price, price, price)


FREE = ModelPrices("free", flat(Decimal(0)))


@dataclass(frozen=True, slots=True)
class RoutePrices:
    """The prices of one route of an agent, as they were at the turn's start; None: they are unknown.

    `window` is the configured context window of the model in tokens.
    """

    provider: str
    model: str
    prices: ModelPrices | None
    window: int | None = None


def priced(usage: Usage, prices: ModelPrices | None) -> Usage:
    """The usage of one call with its cost, unknown without prices.

    What used nothing and is known to, such as a call that was refused, stays as it is: it costs nothing. So does what
    the provider has priced itself.
    """
    if usage == Usage() or usage.cost is not None:
        return usage
    return replace(usage, cost=UNKNOWN_COST if prices is None else prices.cost(usage))


@dataclass(frozen=True, slots=True)
class PriceRule:
    """Prices of every route whose provider and model match these patterns (`*`, `?`, `[...]`; case counts)."""

    provider: str
    model: str
    prices: TokenPrices
    tiers: tuple[PriceTier, ...] = ()


@dataclass(frozen=True, slots=True)
class PriceList:
    """The configured prices; the first rule that matches counts. `packaged`: else ask the packaged table (US dollars).

    `version` names the rules in what is recorded.
    """

    version: str = "configuration"
    currency: str = DEFAULT_CURRENCY
    packaged: bool = True
    rules: tuple[PriceRule, ...] = ()
