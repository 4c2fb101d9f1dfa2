"""Which route a model call takes next: the agent's own, or one of its fallbacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed try of one call. `route` counts the agent's own as 0 and its fallbacks from 1.

    `final` means that the same request cannot succeed on that route; `retry_after` is seconds the provider asked for.
    """

    route: int
    final: bool
    retry_after: float | None = None


def next_route(count: int, first: int, failures: Sequence[Failure]) -> int | None:
    """The route to try: in order from `first`, each once, then again in order; None when every one is out.

    A route with a final failure is out for this call. `count` is how many routes there are.
    """
    out = {failure.route for failure in failures if failure.final}
    tries = [sum(failure.route == route for failure in failures) for route in range(count)]
    left = [route for route in _from(first, count) if route not in out]
    return min(left, key=lambda route: tries[route]) if left else None


def delay_before(route: int, failures: Sequence[Failure]) -> float | None:
    """Seconds to wait before a route is tried: 0 where it has not failed yet, None where nobody said."""
    own = [failure for failure in failures if failure.route == route]
    return own[-1].retry_after if own else 0.0


def _from(first: int, count: int) -> list[int]:
    return [*range(first, count), *range(first)] if first < count else list(range(count))
