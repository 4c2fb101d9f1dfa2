"""Where prices come from: configuration over the packaged table, and nothing guessed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from decimal import Decimal

import pytest

from milepost.config.loading import Config
from milepost.config.problems import ConfigProblems
from milepost.domain.providers import (
    CassetteMode,
    OpenAICompatibleProvider,
    ProviderConfig,
    RecordedProvider,
    ScriptedProvider,
)
from milepost.providers.pricing import PriceBook
from tests.config.conftest import load  # noqa: F401 - a fixture

Load = Callable[[str], Config]

PROVIDERS: dict[str, ProviderConfig] = {
    "vendor": OpenAICompatibleProvider("vendor", "https://api.openai.com/v1", default_model="gpt-4o"),
    "claude": OpenAICompatibleProvider("claude", "https://api.anthropic.com/v1"),
    "local": OpenAICompatibleProvider("local", "http://127.0.0.1:9/v1"),
    "scripted": ScriptedProvider("scripted"),
    "tape": RecordedProvider("tape", "x", "vendor"),
    "live-tape": RecordedProvider("live-tape", "x", "vendor", CassetteMode.RECORD),
}


async def test_the_packaged_table_is_asked_for_vendors_that_it_knows_by_their_address() -> None:
    book = PriceBook(PROVIDERS)
    await book.load()
    found = book.of("vendor", "gpt-4o")
    assert found is not None and found.version == f"genai-prices {importlib.metadata.version('genai-prices')}"
    assert found.base.cached_input < found.base.input < found.base.output == found.base.reasoning
    assert book.of("vendor", "") == found, "the provider's default model"
    assert book.of("live-tape", "gpt-4o") == found
    long = book.of("claude", "claude-sonnet-4-5")
    assert long is not None and long.base.cache_write > long.base.input
    assert [tier.above_input_tokens for tier in long.tiers] == [200_000]
    assert book.of("vendor", "no-such-model-at-all") is None
    assert book.of("local", "gpt-4o") is None, "another server with a model of that name"
    assert book.of("nobody", "gpt-4o") is None
    for free in ("scripted", "tape"):
        prices = book.of(free, "gpt-4o")
        assert prices is not None and prices.base.free


async def test_the_first_configured_rule_that_matches_wins(load: Load) -> None:  # noqa: F811
    config = load(
        """
prices:
  version: contract-7
  models:
    - {provider: local, model: "big-*", input: 2.5, cached_input: 0.25, output: 10, cache_write: 3.125,
       tiers: [{above_input_tokens: 9, input: 5, output: 20}]}
    - {provider: local, input: 0, output: 0}
    - {model: gpt-4o, input: 1, output: 2}
"""
    )
    book = PriceBook(PROVIDERS, config.prices)
    big = book.of("local", "big-1")
    assert big is not None and (big.version, big.currency) == ("contract-7", "USD")
    assert (big.base.input, big.base.cached_input, big.base.output) == (Decimal("2.5"), Decimal("0.25"), 10)
    assert (big.base.reasoning, big.base.cache_write) == (10, Decimal("3.125"))
    assert (big.at(9), big.at(10).cached_input, big.at(10).reasoning) == (big.base, 5, 20)
    small = book.of("local", "Big-1")
    assert small is not None and small.base.free
    assert book.of("vendor", "gpt-4o").base.output == 2  # type: ignore[union-attr]
    assert book.of("scripted", "gpt-4o").base.output == 2  # type: ignore[union-attr]


async def test_without_the_packaged_table_prices_may_have_another_currency(load: Load) -> None:  # noqa: F811
    config = load("prices: {currency: EUR, packaged: false, models: [{provider: local, input: 1, output: 1}]}")
    book = PriceBook(PROVIDERS, config.prices)
    await book.load()
    assert book.of("vendor", "gpt-4o") is None
    assert book.of("local", "x").currency == book.of("scripted", "x").currency == "EUR"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prices: {currency: EUR}", "packaged: false"),
        ("prices: {models: [{input: -1, output: 1}]}", "prices.models.0.input"),
        ("prices: {models: [{input: true, output: 1}]}", "prices.models.0.input"),
        ("prices: {models: [{input: 0.0000001, output: 1}]}", "prices.models.0.input"),
        ("prices: {models: [{input: 1}]}", "prices.models.0.output"),
        ("prices: {models: [{input: 1, output: 1, cached: 1}]}", "cached"),
    ],
)
def test_a_bad_price_is_refused_with_its_place(load: Load, text: str, said: str) -> None:  # noqa: F811
    with pytest.raises(ConfigProblems) as refused:
        load(text)
    assert said in str(refused.value)
