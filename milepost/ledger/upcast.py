"""Bringing event payloads of earlier versions to the current one.

One function per step, registered under (type, from version); steps are chained. There are none while every type is at
version 1; the mechanism is exercised by the tests with a planted step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Step = Callable[[dict[str, Any]], dict[str, Any]]

STEPS: dict[tuple[str, int], Step] = {}


def upcast(type_: str, version: int, current: int, payload: dict[str, Any]) -> dict[str, Any]:
    """Apply every step from `version` up to `current`; versions without a step keep their shape."""
    for step_version in range(version, current):
        step = STEPS.get((type_, step_version))
        if step is not None:
            payload = step(payload)
    return payload
