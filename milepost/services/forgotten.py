"""What was forgotten in a Session, as its forks have to forget it: their turns may have other numbers."""

from __future__ import annotations

import re
from dataclasses import replace

from milepost.domain.errors import TurnNotFound
from milepost.domain.memory_events import MemoryForgotten
from milepost.ledger.copies import copied_id
from milepost.ports.ledger import LedgerTx

_ENTRY = re.compile(r"t([1-9][0-9]{0,8})(\..+)", re.DOTALL)
"""An entry of a turn, by the turn's number (`services.turn_entries`)."""


def forgotten_in_fork(tx: LedgerTx, event: MemoryForgotten, source: str, fork: str) -> MemoryForgotten:
    """The event with the entries of turns that were copied, by their numbers in the fork."""
    ids = [_id_in_fork(tx, each, source, fork) for each in event.ids]
    return replace(event, ids=tuple(each for each in ids if each is not None))


def _id_in_fork(tx: LedgerTx, entry: str, source: str, fork: str) -> str | None:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        return entry
    try:
        old = tx.turns.numbered(source, int(found[1]))
        return f"t{tx.turns.get(copied_id(fork, old.turn_id, 'trn_')).number}{found[2]}"
    except TurnNotFound:
        return None
