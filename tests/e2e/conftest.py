"""A fresh data root for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.home import Home


@pytest.fixture
def home() -> Iterator[Home]:
    home = Home()
    yield home
    left = home.leftovers()
    home.remove()
    assert left == [], "a command that has ended leaves no process behind"
