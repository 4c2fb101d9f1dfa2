"""Usage in four disjoint classes from the shapes that OpenAI-compatible servers report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from milepost.domain.usage import UNKNOWN_USAGE, Usage

MAX_COUNT = 10**12
"""A number above this counts no tokens."""


def usage_of(reported: Mapping[str, Any]) -> Usage:
    """Split a `usage` object.

    `prompt_tokens` includes cached ones (`prompt_tokens_details.cached_tokens`; DeepSeek: `prompt_cache_hit_tokens`;
    Moonshot: `cached_tokens`), `completion_tokens` includes reasoning ones
    (`completion_tokens_details.reasoning_tokens`), except where the reported total shows that they come on top (xAI).
    Numbers that contradict each other make the result incomplete.
    """
    prompt = _count(reported.get("prompt_tokens"))
    completion = _count(reported.get("completion_tokens"))
    if prompt is None or completion is None:
        return Usage(input_tokens=prompt or 0, output_tokens=completion or 0, complete=False)
    cached = (
        _count(_nested(reported, "prompt_tokens_details", "cached_tokens"))
        or _count(reported.get("prompt_cache_hit_tokens"))
        or _count(reported.get("cached_tokens"))
        or 0
    )
    reasoning = (
        _count(_nested(reported, "completion_tokens_details", "reasoning_tokens"))
        or _count(reported.get("reasoning_tokens"))
        or 0
    )
    total = _count(reported.get("total_tokens"))
    on_top = bool(reasoning) and total == prompt + completion + reasoning
    output = completion if on_top else completion - reasoning
    sound = cached <= prompt and output >= 0
    return Usage(
        input_tokens=max(prompt - cached, 0),
        cached_input_tokens=min(cached, prompt),
        output_tokens=max(output, 0),
        reasoning_tokens=reasoning if output >= 0 else completion,
        complete=sound,
    )


def last_usage(reports: list[Mapping[str, Any]]) -> Usage:
    """Usage of a stream: reports are cumulative (some servers repeat or grow them), so the largest one counts."""
    found = [usage_of(report) for report in reports]
    return max(found, key=lambda usage: (usage.complete, usage.total_tokens), default=UNKNOWN_USAGE)


def _count(value: object) -> int | None:
    """A token count, or None for anything that is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # In this order: no whole number can be made of an infinite one.
    if not math.isfinite(value) or not 0 <= value <= MAX_COUNT or value != int(value):
        return None
    return int(value)


def _nested(reported: Mapping[str, Any], outer: str, inner: str) -> object:
    details = reported.get(outer)
    return details.get(inner) if isinstance(details, Mapping) else None
