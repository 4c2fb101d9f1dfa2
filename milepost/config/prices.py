"""The `prices` section."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from milepost.config.sections import Count, Section
from milepost.domain.prices import PRICE_DECIMALS
from milepost.domain.usage import DEFAULT_CURRENCY

MAX_PRICE = 1_000_000


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false.")
    return value


Price = Annotated[
    Decimal,
    BeforeValidator(_no_bool),
    Field(ge=0, le=MAX_PRICE, decimal_places=PRICE_DECIMALS, allow_inf_nan=False),
]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class TokenPricesSection(Section):
    """Prices per million tokens."""

    input: Price
    cached_input: Price | None = None
    """Default: the price of input."""
    output: Price
    reasoning: Price | None = None
    """Default: the price of output."""
    cache_write: Price | None = None
    """Of input that is also written to the provider's prompt cache. Default: the price of input."""


class PriceTierSection(TokenPricesSection):
    above_input_tokens: Annotated[Count, Field(ge=0)]
    """These prices hold for calls with more input than this, cached tokens included."""


class ModelPricesSection(TokenPricesSection):
    provider: Pattern = "*"
    """Name of a provider, or a pattern."""
    model: Pattern = "*"
    """Name of a model, or a pattern."""
    tiers: Annotated[tuple[PriceTierSection, ...], Field(max_length=10)] = ()
    """Prices of calls with long inputs."""


class PricesSection(Section):
    version: Annotated[str, StringConstraints(min_length=1, max_length=100)] = "configuration"
    """Name of this list, recorded with each turn."""
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] = DEFAULT_CURRENCY
    """Of all prices here, by its ISO 4217 code."""
    packaged: bool = True
    """Take what is not listed from the packaged table."""
    models: Annotated[tuple[ModelPricesSection, ...], Field(max_length=1000)] = ()
    """The first entry that matches a route counts."""

    @model_validator(mode="after")
    def _one_currency(self) -> PricesSection:
        if self.packaged and self.currency != DEFAULT_CURRENCY:
            raise ValueError(
                f"the packaged table is in {DEFAULT_CURRENCY}: set 'packaged: false' for another currency."
            )
        return self
