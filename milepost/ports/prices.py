"""The prices port: what a route costs."""

from __future__ import annotations

from typing import Protocol

from milepost.domain.prices import ModelPrices


class Prices(Protocol):
    """Prices by route, as they are now. A turn records them once, at its start."""

    async def load(self) -> None:
        """Read the packaged table if a configured route may need it; a second call does nothing."""

    def of(self, provider: str, model: str) -> ModelPrices | None:
        """The prices of a route; None if nobody knows them. No I/O after `load`."""

    def window(self, provider: str, model: str) -> int | None:
        """The configured context window of a model in tokens; None if it is not configured."""


class NoPrices:
    """`Prices` without any: all of them are unknown."""

    async def load(self) -> None:
        return

    def of(self, provider: str, model: str) -> ModelPrices | None:
        return None

    def window(self, provider: str, model: str) -> int | None:
        return None
