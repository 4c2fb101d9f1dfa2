"""The price book: configured prices over a packaged table.

The table is genai-prices (MIT), which the model library brings along; its release is the table's version.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

from milepost.domain.prices import (
    FREE,
    PRICE_DECIMALS,
    ModelPrices,
    PriceList,
    PriceTier,
    TokenPrices,
)
from milepost.domain.providers import (
    AnthropicProfile,
    CassetteMode,
    HttpProvider,
    ProviderConfig,
    RecordedProvider,
    ScriptedProvider,
)
from milepost.domain.usage import DEFAULT_CURRENCY

TABLE = "genai-prices"


class PriceBook:
    """`ports.prices.Prices`.

    A route's prices are those of the first configured rule that matches; a script and a replayed cassette are free;
    else those of the packaged table, for the vendor that the provider's address names.
    Nothing is guessed for an address that the table does not know.
    """

    def __init__(self, providers: Mapping[str, ProviderConfig], prices: PriceList | None = None) -> None:
        self._providers = dict(providers)
        self._prices = prices or PriceList()

    async def load(self) -> None:
        if self._prices.packaged and any(self._address(name) is not None for name in self._providers):
            await asyncio.to_thread(_table)

    def of(self, provider: str, model: str) -> ModelPrices | None:
        config = self._providers.get(provider)
        model = model or (config.default_model if config is not None else None) or ""
        for rule in self._prices.rules:
            if fnmatchcase(provider, rule.provider) and fnmatchcase(model, rule.model):
                return ModelPrices(self._prices.version, rule.prices, self._prices.currency, rule.tiers)
        match config:
            case None:
                return None
            case ScriptedProvider():
                return replace(FREE, currency=self._prices.currency)
            case RecordedProvider():
                if config.mode is CassetteMode.REPLAY or config.source is None:
                    return replace(FREE, currency=self._prices.currency)
                return self.of(config.source, model)
            case _:
                profile = config.profile_of(model)
                hour = isinstance(profile, AnthropicProfile) and profile.prompt_cache == "1h"
                return _packaged(model, config.base_url, hour) if self._prices.packaged else None

    def window(self, provider: str, model: str) -> int | None:
        config = self._providers.get(provider)
        if isinstance(config, RecordedProvider) and config.source is not None:
            return self.window(config.source, model)
        if not isinstance(config, HttpProvider):
            return None
        model = model or config.default_model or ""
        found = (tokens for pattern, tokens in config.context_tokens.items() if fnmatchcase(model, pattern))
        return next(found, None)

    def _address(self, provider: str) -> str | None:
        """The address by which the table knows a vendor; None for what it cannot know."""
        config = self._providers[provider]
        return config.base_url if isinstance(config, HttpProvider) else None


def _table() -> Any:
    # Here, not above: half a second and 40 MB that a process without a priced provider need not pay.
    from genai_prices import data_snapshot

    return data_snapshot.get_snapshot()


def _packaged(model: str, address: str, hour: bool) -> ModelPrices | None:
    """The table's prices; `hour`: of a cache that is kept for an hour."""
    try:
        _, info = _table().find_provider_model(model, None, None, address)
        return _converted(info.get_prices(datetime.now(UTC)), hour)
    except LookupError:
        return None


def _converted(found: Any, hour: bool) -> ModelPrices | None:
    """The table's prices in our classes. A class without a price of its own costs what the class around it costs."""
    if found.input_mtok is None or found.output_mtok is None:
        return None
    keys = {
        "input": (found.input_mtok,),
        "cached_input": (found.cache_read_mtok, found.input_mtok),
        "output": (found.output_mtok,),
        "reasoning": (found.output_reasoning_mtok, found.output_mtok),
        "cache_write": (
            found.cache_write_1h_mtok if hour else None,
            found.cache_write_mtok,
            found.cache_write_5m_mtok,
            found.input_mtok,
        ),
    }
    chosen = {name: next(value for value in values if value is not None) for name, values in keys.items()}
    # The table counts calls in thousands.
    call = (found.requests_kcount or Decimal(0)) * 1000
    starts = sorted({tier.start for value in chosen.values() for tier in getattr(value, "tiers", ())})

    def at(start: int | None) -> TokenPrices:
        return TokenPrices(**{name: _at(value, start) for name, value in chosen.items()}, call=_rounded(call))

    version = f"{TABLE} {importlib.metadata.version(TABLE)}"
    return ModelPrices(version, at(None), DEFAULT_CURRENCY, tuple(PriceTier(start, at(start)) for start in starts))


def _at(value: Any, start: int | None) -> Decimal:
    """A price above `start` input tokens, or the base price."""
    tiers = getattr(value, "tiers", None)
    if tiers is None:
        return _rounded(value)
    reached = [tier.price for tier in tiers if start is not None and tier.start <= start]
    return _rounded(reached[-1] if reached else value.base)


def _rounded(price: Decimal) -> Decimal:
    return round(price, PRICE_DECIMALS)
