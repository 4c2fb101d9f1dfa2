"""Tests against real services: only where they are asked for, and only with keys that are set."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the live tests out unless the run selects them: `-m live`."""
    if "live" in (config.getoption("markexpr") or ""):
        return
    live = [item for item in items if item.get_closest_marker("live")]
    if live:
        items[:] = [item for item in items if item not in live]
        config.hook.pytest_deselected(items=live)
