"""The working directory that an agent's next command begins in, as the ledger says."""

from __future__ import annotations

from milepost.domain.processes import WORKSPACE_DIRECTORY, ShellMoved
from milepost.domain.turns import Turn
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx

PAGE = 50


class Shells:
    """Reads the moves of a Session's live turns, newest first: what a rewind took back has moved nobody."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def cwd(self, turn: Turn, agent: str) -> str:
        """Relative to the Workspace. A stateless turn begins in the Workspace."""
        return await self._ledger.read(lambda tx: _cwd(tx, turn, agent))


def _cwd(tx: LedgerTx, turn: Turn, agent: str) -> str:
    before: int | None = None
    live = {turn.turn_id: True}
    while True:
        found = tx.events.newest_moves(turn.session_id, before=before, limit=PAGE)
        for item in found:
            event = decode_event(item.type, item.version, item.payload)
            if not isinstance(event, ShellMoved) or event.agent != agent:
                continue
            if turn.request.options.stateless and event.turn_id != turn.turn_id:
                return WORKSPACE_DIRECTORY
            if event.turn_id not in live:
                moved = tx.turns.get(event.turn_id)
                live[event.turn_id] = not moved.superseded and moved.number < turn.number
            if live[event.turn_id]:
                return event.cwd
        if len(found) < PAGE:
            return WORKSPACE_DIRECTORY
        before = found[-1].seq
