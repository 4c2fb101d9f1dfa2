"""A turn's events are read on, and anew when the ledger is not what it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from activities.own_events import OwnEvents
from milepost.domain.events import AgentStarted, Event, StreamKind, ToolStarted, TurnBegun
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.models import NoTokenCounters
from milepost.services.token_counts import RememberedCounts
from tests.ledger.samples import new_turn

TYPES = (TurnBegun.TYPE, ToolStarted.TYPE)


async def _add(ledger: Ledger, session: str, turn_id: str, *numbers: int) -> None:
    new = [
        NewEvent(f"{turn_id}/{number}", ToolStarted(turn_id, "a", "e", 1, number, 0, "c", "bash"), turn_id)
        for number in numbers
    ]
    await ledger.write(lambda tx: tx.events.append(session, StreamKind.SESSION, new, 9))


class _Reading:
    def __init__(self, ledger: Ledger, limit: int = 10_000) -> None:
        self.ledger = ledger
        self.decoded: list[int] = []
        self.own = OwnEvents(TYPES, self._decode, limit)

    def _decode(self, item: StoredEvent) -> Event:
        self.decoded.append(item.seq)
        return decode_event(item.type, item.version, item.payload)

    async def __call__(self, session: str, turn_id: str) -> list[int]:
        """The rounds that are read; 0 stands for the begin."""
        found = await self.ledger.read(lambda tx: self.own.read(tx, session, turn_id))
        assert all(size > 0 for size, _ in found)
        return [event.round if isinstance(event, ToolStarted) else 0 for _, event in found]


async def test_what_is_known_is_not_read_again(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    read = _Reading(ledger)
    place = (turn.session_id, turn.turn_id)
    assert await read(*place) == [0]
    await _add(ledger, *place, 1, 2)
    assert await read(*place) == [0, 1, 2]
    assert await read(*place) == [0, 1, 2]
    await _add(ledger, *place, 3)
    assert await read(*place) == [0, 1, 2, 3]
    assert read.decoded == [1, 2, 3, 4]
    assert await read(turn.session_id, "trn_none") == []


async def test_a_ledger_that_is_not_what_it_was_is_read_anew(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    read = _Reading(ledger)
    place = (turn.session_id, turn.turn_id)
    await _add(ledger, *place, 1)
    await read(*place)
    known = read.own._turns[place]
    for other in (replace(known, hash=bytes(32)), replace(known, seq=known.seq + 7), replace(known, seq=1)):
        read.own._turns[place] = replace(other, events=())
        assert await read(*place) == [0, 1]


async def test_it_keeps_within_its_bound(ledger: Ledger) -> None:
    turns = [await new_turn(ledger) for _ in range(4)]
    read = _Reading(ledger, limit=2_000)
    for _ in range(2):
        for turn in turns:
            assert await read(turn.session_id, turn.turn_id) == [0]
            assert read.own.bytes <= 2_000
            assert read.own.bytes == sum(known.bytes for known in read.own._turns.values())


async def test_events_of_a_turn_after_another(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    await _add(ledger, turn.session_id, turn.turn_id, 1, 2)

    def after(tx: LedgerTx, seq: int, *types: str) -> list[int]:
        return [item.seq for item in tx.events.read_turn(turn.session_id, turn.turn_id, types=types, after=seq)]

    assert await ledger.read(lambda tx: after(tx, 1)) == [2, 3]
    assert await ledger.read(lambda tx: after(tx, 2, ToolStarted.TYPE)) == [3]
    assert await ledger.read(lambda tx: after(tx, 0, AgentStarted.TYPE)) == []


@pytest.mark.parametrize("limit", [0, 1_000, 100_000])
async def test_token_counts_are_remembered_within_a_bound(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    def count(text: str) -> float:
        counted.append(text)
        return float(len(text))

    monkeypatch.setattr("milepost.services.token_counts.text_tokens", count)
    counts = RememberedCounts(NoTokenCounters(), limit)
    texts = [f"{number}" * 300 for number in range(1, 6)]
    for _ in range(3):
        tokens = await counts.of("p", "m")
        assert [tokens(text) for text in texts] == [float(len(text)) for text in texts]
        assert counts.characters <= limit
    assert len(counted) == (5 if limit == 100_000 else 15)
