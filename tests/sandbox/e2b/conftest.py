"""The double of E2B's service, and providers of one account of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from milepost.sandboxes.e2b.provider import E2BProvider
from milepost.sandboxes.e2b.settings import E2BSettings
from tests.support.e2b import KEY, Double, e2b_double

Make = Callable[..., E2BProvider]


@pytest.fixture
async def double() -> AsyncIterator[Double]:
    async with e2b_double() as made:
        yield made


@pytest.fixture
async def make(double: Double) -> AsyncIterator[Make]:
    """A provider as one worker process has it; each call is another process."""
    made: list[E2BProvider] = []

    def provider(instance: str = "instance", key: str = KEY, **choices: Any) -> E2BProvider:
        settings = E2BSettings(key=lambda: key, api_url=double.url, sandbox_url=double.url, **choices)
        made.append(E2BProvider(settings, instance, lease="tests"))
        return made[-1]

    yield provider
    for each in made:
        await each.close()
