"""Usage in four disjoint classes from what the messages API reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.domain.usage import Usage
from milepost.providers.events import token_count


class UsageReports:
    """Reports of one answer: the first says the input, the later ones are cumulative."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._ended = False

    def add(self, reported: Any, *, end: bool) -> None:
        """Take in a `usage` object; `end` for one that came with the finish reason or after it."""
        if not isinstance(reported, Mapping):
            return
        details = reported.get("output_tokens_details")
        thinking = details.get("thinking_tokens") if isinstance(details, Mapping) else None
        found = {name: token_count(reported.get(name)) for name in _COUNTS} | {"thinking": token_count(thinking)}
        # Cumulative: one that is repeated, or lower than before, adds nothing.
        for name, count in found.items():
            if count is not None:
                self._counts[name] = max(count, self._counts.get(name, 0))
        # The output that the first report names is the beginning of an answer, not the answer.
        self._ended = self._ended or (end and found["output_tokens"] is not None)

    def usage(self) -> Usage:
        """`input_tokens` counts neither what was read from the cache nor what was written to it; both are input."""
        counts = self._counts
        written = counts.get("cache_creation_input_tokens", 0)
        output, thinking = counts.get("output_tokens", 0), counts.get("thinking", 0)
        return Usage(
            input_tokens=counts.get("input_tokens", 0) + written,
            cached_input_tokens=counts.get("cache_read_input_tokens", 0),
            output_tokens=max(output - thinking, 0),
            reasoning_tokens=min(thinking, output),
            complete=self._ended and "input_tokens" in counts and thinking <= output,
            cache_write_tokens=written,
        )


_COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
