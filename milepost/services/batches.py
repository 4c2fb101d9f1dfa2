"""Reading rows of very different sizes in batches that are bounded by count and by bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_STEP = 4
STEP_GROWTH = 4


def bounded_batch(
    read: Callable[[T | None, int], list[T]], size: Callable[[T], int], *, count: int, max_bytes: int
) -> tuple[list[T], bool]:
    """At most `count` items of together at most `max_bytes`, but at least one; and whether more may follow.

    Sizes are known only once items were read, so it reads in steps: a few at first, then as many as those before let
    expect to fit.

    Args:
        read: (the last item so far, how many) to the items after it, in order; fewer than asked for at the end.
        size: bytes of an item.
    """
    items: list[T] = []
    held, step = 0, FIRST_STEP
    while len(items) < count:
        asked = min(step, count - len(items))
        found = read(items[-1] if items else None, asked)
        for item in found:
            held += size(item)
            if items and held > max_bytes:
                return items, True
            items.append(item)
        if len(found) < asked:
            return items, False
        fitting = (max_bytes - held) * len(items) // max(held, 1)
        step = max(1, min(step * STEP_GROWTH, fitting))
    return items, True
