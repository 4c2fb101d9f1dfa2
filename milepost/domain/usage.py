"""Token usage in four disjoint classes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or several model calls.

    The four classes are disjoint: a cached input token is not counted in `input_tokens`, a reasoning token is not
    counted in `output_tokens`. `complete` is sticky: once any part is unknown, a sum is a known subtotal and says so.
    """

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    complete: bool = True

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.complete and other.complete,
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.cached_input_tokens + self.output_tokens + self.reasoning_tokens


UNKNOWN_USAGE = Usage(complete=False)
