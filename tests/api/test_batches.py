"""Batches that are bounded by count and by bytes."""

from __future__ import annotations

import pytest

from milepost.services.batches import FIRST_STEP, bounded_batch


@pytest.mark.parametrize(
    ("sizes", "count", "taken", "more"),
    [
        ([], 10, 0, False),
        ([1] * 3, 10, 3, False),
        ([1] * 10, 10, 10, True),
        ([1] * 9, 10, 9, False),
        ([50] * 9, 10, 2, True),
        ([100] * 2, 10, 1, True),
        ([1000, 1], 10, 1, True),
        ([1, 1000, 1], 10, 1, True),
        ([1] * 20 + [1000] * 5, 100, 20, True),
        ([0] * 300, 200, 200, True),
        ([100], 1, 1, True),
    ],
)
def test_a_batch(sizes: list[int], count: int, taken: int, more: bool) -> None:
    asked: list[int] = []

    def read(last: int | None, limit: int) -> list[int]:
        asked.append(limit)
        start = 0 if last is None else last + 1
        return list(range(len(sizes)))[start : start + limit]

    items, may_follow = bounded_batch(read, sizes.__getitem__, count=count, max_bytes=100)
    assert items == list(range(taken))
    assert may_follow is more
    assert asked[0] <= FIRST_STEP
    assert len(asked) <= 6
    # What was read for nothing is little beside what was taken.
    assert sum(asked) <= max(count, 5 * taken + FIRST_STEP)
