"""When a consolidation that failed may be tried again: what its earlier tries say. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.domain.consolidation import MAX_TRIES, Consolidation, ConsolidationState

BACKOFF = 4
"""After n failures the next try waits BACKOFF**n intervals of the schedule."""
LONGEST_WAIT_SECS = 86_400
_NO_RESULT = frozenset({ConsolidationState.FAILED, ConsolidationState.RUNNING})


def failures(known: Sequence[Consolidation], turn_id: str, newest: int | None) -> Sequence[Consolidation]:
    """The last tries about what is there now, newest first; one that is `running` is taken for lost.

    Args:
        known: consolidations of an agent in a Session, newest first.
        turn_id: the newest turn that counts.
        newest: position of the newest record, None if it is not known: then only a newer turn is something new.
    """
    count = 0
    for item in known:
        same = item.turn_id == turn_id or (newest is not None and item.watermark >= newest)
        if item.state not in _NO_RESULT or not same:
            break
        count += 1
    return known[:count]


def may_try(failed: Sequence[Consolidation], interval_secs: int, now: int) -> bool:
    """Whether another try may be made `now` (microseconds since the epoch), after these, newest first."""
    if not failed:
        return True
    wait = min(interval_secs * BACKOFF ** len(failed), max(LONGEST_WAIT_SECS, interval_secs))
    return len(failed) < MAX_TRIES and failed[0].updated_at + wait * 1_000_000 <= now
