"""Compaction: what a conversation is cut to, so that it fits a model's window. The ledger is never cut."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_THRESHOLD = 85
MAX_COMPACTIONS = 2
"""Of an agent in one turn."""


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """When an agent's conversation is compacted: over `threshold` percent of the window.

    `window` is tokens, for a model whose window the provider's configuration does not tell.
    """

    compact: bool = True
    threshold: int = DEFAULT_THRESHOLD
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where the part of a conversation that is left alone begins, counted from a turn: `turns` live turns before it.

    `round` is the first model round of that turn that is left alone; 0 is all of it. A turn's request is left alone
    with any of its rounds. Live turns are counted, since a fork gives turns other numbers and ids.
    """

    turns: int = 0
    round: int = 0

    def later(self, turns: int) -> Boundary:
        """The same place, counted from so many live turns later."""
        return Boundary(self.turns + turns, self.round)

    def covers(self, turns: int, round_: int) -> bool:
        """Whether the place lies before the boundary: a round, or a request (0), of so many live turns ago."""
        return turns > self.turns or (turns == self.turns and 0 < round_ < self.round)
