"""A served instance for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.stack import Stack, running_stack


@pytest.fixture
async def stack(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(sqlite_url, tmp_path) as running:
        yield running
