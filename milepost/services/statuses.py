"""What readers are told of a running turn beside its state."""

from __future__ import annotations

from milepost.domain.turns import Turn, TurnStatus
from milepost.engine.status import turn_status
from milepost.ports.ledger import LedgerTx


def status_at(tx: LedgerTx, turn: Turn, now: int) -> TurnStatus:
    """The turn's derived status; see `engine.status.turn_status`."""
    if turn.state.terminal:
        return TurnStatus.ENDED
    person = bool(tx.approvals.pending_of_turn(turn.turn_id, 1))
    workspace = tx.workspaces.waits(turn.turn_id, now)
    # Nobody has such a turn in hand; what matters is that somebody could go on with it.
    seen = tx.workers.last_beat() if person or workspace else tx.workers.owner_seen(turn.turn_id)
    return turn_status(turn, awaiting_person=person, awaiting_workspace=workspace, owner_seen=seen, now=now)
