"""The working directory that an agent's next command begins in, as the ledger says."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.domain.processes import WORKSPACE_DIRECTORY, ShellMoved
from milepost.domain.turns import Turn
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx

PAGE = 200
_TYPES = (ShellMoved.TYPE,)


class Shells:
    """Reads the moves of a Session's live turns, newest first: what a rewind took back has moved nobody."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def cwd(self, turn: Turn, agent: str) -> str:
        """Relative to the Workspace. A stateless turn begins in the Workspace."""
        return await self._ledger.read(lambda tx: _cwd(tx, turn, agent))


def _cwd(tx: LedgerTx, turn: Turn, agent: str) -> str:
    found = _last(tx.events.read_turn(turn.session_id, turn.turn_id, types=_TYPES), agent)
    before = 0 if turn.request.options.stateless else turn.number
    while found is None and before > 1:
        turns = tx.turns.live_before(turn.session_id, before, PAGE)
        if not turns:
            break
        found = _last(tx.events.read_turns(turn.session_id, [turn_id for _, turn_id in turns], types=_TYPES), agent)
        before = turns[-1][0]
    return WORKSPACE_DIRECTORY if found is None else found


def _last(events: Sequence[StoredEvent], agent: str) -> str | None:
    for item in reversed(events):
        event = decode_event(item.type, item.version, item.payload)
        if isinstance(event, ShellMoved) and event.agent == agent:
            return event.cwd
    return None
