"""What has to be done on memory, noted in the transaction that causes it."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.domain.events import AgentStarted, Event
from milepost.domain.turns import Turn
from milepost.ports.ledger import LedgerTx
from milepost.ports.memory_rows import MemoryTaskKind


def remember_turn(tx: LedgerTx, turn: Turn, events: Sequence[Event], at: int) -> None:
    """A turn ends: it goes into the memory of its agents that have one."""
    if any(isinstance(event, AgentStarted) and event.memory is not None for event in events):
        tx.memory_tasks.add(MemoryTaskKind.WRITE, turn.turn_id, turn.session_id, at)


def rebuild_memory(tx: LedgerTx, session_id: str, at: int) -> None:
    """A Session came into being by copying: its memory is made from its events."""
    tx.memory_tasks.add(MemoryTaskKind.REBUILD, session_id, session_id, at)
