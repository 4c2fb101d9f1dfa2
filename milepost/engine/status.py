"""The status a reader sees beside a turn's state; derived at read time, never stored."""

from __future__ import annotations

from milepost.domain.turns import Turn, TurnStatus

RECOVERING_AFTER_US = 60_000_000


def turn_status(
    turn: Turn, *, awaiting_person: bool, owner_seen: int | None, now: int, awaiting_workspace: bool = False
) -> TurnStatus:
    """Derive the status.

    `waiting`: Temporal has not acknowledged the start. `recovering`: whoever works on the turn was not heard of for
    60 s, counted from the dispatch for a turn that no worker has seen.

    Args:
        owner_seen: see `ports.ledger.Workers.owner_seen`; of a turn that waits for somebody else any worker's
            newest beat.
    """
    if turn.state.terminal:
        return TurnStatus.ENDED
    if turn.dispatched_at is None and turn.claimed_run is None:
        return TurnStatus.WAITING
    freshest = max(owner_seen or 0, turn.dispatched_at or turn.created_at)
    if now - freshest > RECOVERING_AFTER_US:
        return TurnStatus.RECOVERING
    if turn.stop_requested_at is not None:
        return TurnStatus.STOPPING
    if awaiting_workspace:
        return TurnStatus.WAITING_FOR_WORKSPACE
    return TurnStatus.WAITING_FOR_PERSON if awaiting_person else TurnStatus.WORKING
