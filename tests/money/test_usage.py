"""Sums of usage and cost: exact, in any grouping, and never more certain than their parts."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.prices import ModelPrices, PriceTier, TokenPrices, priced
from milepost.domain.usage import UNKNOWN_COST, UNKNOWN_USAGE, Cost, Usage
from milepost.ledger.codec import decode, encode

counts = st.integers(0, 10**12)
prices = st.decimals(0, 1_000_000, places=6, allow_nan=False, allow_infinity=False)
token_prices = st.builds(TokenPrices, prices, prices, prices, prices, prices, prices)
usages = st.builds(Usage, counts, counts, counts, counts, st.booleans(), counts)
charges = st.builds(priced, usages, st.none() | st.builds(ModelPrices, st.just("v"), token_prices))


@given(st.lists(charges | usages, max_size=12), st.integers(0, 12))
def test_a_sum_does_not_depend_on_how_it_is_grouped(parts: list[Usage], cut: int) -> None:
    whole = sum(parts, Usage())
    split = sum(parts[:cut], Usage()) + sum(parts[cut:], Usage())
    assert whole.spent == split.spent == sum((part.spent for part in parts), Cost())
    assert whole.total_tokens == split.total_tokens == sum(part.total_tokens for part in parts)
    assert whole.complete is all(part.complete for part in parts)
    assert whole.spent.complete is all(part.spent.complete for part in parts)


@given(charges)
def test_the_codec_keeps_every_digit(usage: Usage) -> None:
    assert decode(encode(usage), Usage) == usage
    assert encode(decode(encode(usage), Usage)) == encode(usage)


def test_what_nobody_priced_is_unknown_and_not_nothing() -> None:
    assert Usage().spent == Cost()
    assert Usage(3).spent == UNKNOWN_USAGE.spent == UNKNOWN_COST
    assert priced(Usage(3), None).spent == UNKNOWN_COST
    assert priced(Usage(), None).spent == Cost(), "a call that was refused"
    known = Usage(2, cost=Cost(Decimal(7)))
    assert (known + Usage(3)).spent == Cost(Decimal(7), complete=False)


def test_another_currency_is_not_converted() -> None:
    total = Cost(Decimal(5), "EUR") + Cost(Decimal(7), "USD")
    assert total == Cost(Decimal(5), "EUR", complete=False)
    assert Cost() + Cost(Decimal(7), "EUR") == Cost(Decimal(7), "EUR")


def per(*each: str) -> TokenPrices:
    return TokenPrices(*map(Decimal, each))


def test_each_class_has_its_price_and_a_long_input_raises_all_of_them() -> None:
    base, long = per("2", "0.5", "10", "12", "2.5"), per("4", "1", "20", "24", "5")
    model = ModelPrices("v", base, tiers=(PriceTier(200, long),))
    short = Usage(150, 50, 7, 3, cache_write_tokens=100)
    assert model.cost(short).micros == 50 * 2 + 100 * Decimal("2.5") + 50 * Decimal("0.5") + 7 * 10 + 3 * 12
    assert model.cost(Usage(151, 50, 7, 3)).micros == 151 * 4 + 50 * 1 + 7 * 20 + 3 * 24
    assert not model.cost(UNKNOWN_USAGE).complete
    assert ModelPrices("free", per("0", "0", "0", "0", "0")).cost(UNKNOWN_USAGE) == Cost()
