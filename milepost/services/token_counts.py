"""Token counts of texts that are counted again: a turn sends what it sent in its last round, and a little more."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from milepost.engine.tokens import text_tokens
from milepost.ports.models import TokenCounters

SHORTEST = 256
"""Characters; shorter texts are counted as fast as they are found."""

MAX_CHARACTERS = 16 * 1024 * 1024

Count = Callable[[str], float]


class RememberedCounts:
    """`TokenCounters` that remember what was counted last, within a bound. Safe in several threads."""

    def __init__(self, counters: TokenCounters, limit: int = MAX_CHARACTERS) -> None:
        self._counters = counters
        self._limit = limit
        self._lock = threading.Lock()
        self._counts: OrderedDict[tuple[Count, str], float] = OrderedDict()
        self.characters = 0

    async def of(self, provider: str, model: str) -> Count:
        """The exact count of the model's vocabulary, or the estimate."""
        count = await self._counters.of(provider, model) or text_tokens
        return lambda text: self._count(count, text)

    def _count(self, count: Count, text: str) -> float:
        if len(text) < SHORTEST:
            return count(text)
        key = (count, text)
        with self._lock:
            known = self._counts.get(key)
            if known is not None:
                self._counts.move_to_end(key)
                return known
        tokens = count(text)
        with self._lock:
            if key not in self._counts:
                self._counts[key] = tokens
                self.characters += len(text)
            while self.characters > self._limit:
                (_, left), _ = self._counts.popitem(last=False)
                self.characters -= len(left)
        return tokens
