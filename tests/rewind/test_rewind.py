"""Rewind: turns behind a point stop counting; nothing is deleted, nothing is started."""

from __future__ import annotations

import pytest

from milepost.domain.errors import InvalidInput, SessionClosed, TurnNotFound, TurnRunning, TurnSuperseded
from milepost.domain.events import SessionRewound
from milepost.ledger.chain import verify_chain
from milepost.ledger.codec import decode_event
from milepost.services.rewinds import RewindTo
from milepost.services.turns import BeginTurn
from tests.api.stack import Work
from tests.rewind.conftest import Bench


async def _three(bench: Bench) -> tuple[str, list[str]]:
    session = await bench.open()
    return session, [await bench.turn(session, text) for text in ("one", "two", "three")]


async def test_the_model_goes_on_from_the_point(bench: Bench) -> None:
    session, turns = await _three(bench)
    done = await bench.rewinds.rewind(RewindTo(session, "anna", 1, reason="wrong way"))
    assert done.rewind is not None and done.plan.count == 2
    assert [turn.turn_id for turn in done.plan.turns] == [turns[2], turns[1]]
    begun = await bench.turns.begin(BeginTurn(session, "four"))
    assert begun.turn.number == 4
    await Work(bench.ledger, session, begun.turn.turn_id).start_agent()
    assert await bench.texts(begun.turn.turn_id) == ["one", "answer to one", "four"]
    shown = await bench.history.page(session)
    assert [entry.turn.number for entry in shown.entries] == [4, 1]
    every = await bench.history.page(session, superseded=True)
    assert [(entry.turn.number, entry.turn.superseded) for entry in every.entries] == [
        (4, False),
        (3, True),
        (2, True),
        (1, False),
    ]
    assert every.entries[1].output.text == "answer to three"
    events = await bench.ledger.read(lambda tx: tx.events.read(session))
    verify_chain(events)
    rewound = [decode_event(e.type, e.version, e.payload) for e in events if e.type == SessionRewound.TYPE]
    assert rewound == [SessionRewound(done.rewind.rewind_id, 1, 3, 2, "anna", "wrong way")]
    assert await bench.rewinds.page(session) == [done.rewind]


async def test_before_the_first_turn_and_again(bench: Bench) -> None:
    session, _ = await _three(bench)
    assert (await bench.rewinds.rewind(RewindTo(session, "a", 0))).plan.count == 3
    again = await bench.rewinds.rewind(RewindTo(session, "a", 0))
    assert again.rewind is None and again.plan.count == 0
    assert (await bench.history.page(session)).entries == ()
    # What was superseded before is not counted by the next rewind.
    await bench.turn(session, "four")
    await bench.turn(session, "five")
    second = await bench.rewinds.rewind(RewindTo(session, "a", 4))
    assert second.rewind is not None and (second.rewind.turns, second.rewind.last_number) == (1, 5)
    pages = await bench.rewinds.page(session, limit=1)
    assert pages == [second.rewind]
    older = await bench.rewinds.page(session, before=second.rewind.rewind_id)
    assert [rewind.to_number for rewind in older] == [0]


async def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    session, _ = await _three(bench)
    head = await bench.ledger.read(lambda tx: tx.events.head(session))
    plan = await bench.rewinds.plan(RewindTo(session, "a", 2))
    assert (plan.to_number, plan.last_number, plan.count) == (2, 3, 1)
    assert await bench.ledger.read(lambda tx: tx.events.head(session)) == head
    assert len((await bench.history.page(session)).entries) == 3
    assert await bench.rewinds.page(session) == []


async def test_what_it_does_not_undo_is_named(bench: Bench) -> None:
    session = await bench.open()
    await bench.turn(session, "kept", tool="tool:bash")
    await bench.turn(session, "dropped", tool="tool:bash")
    await bench.turn(session, "dropped too", tool="tool:send_mail")
    plan = await bench.rewinds.plan(RewindTo(session, "a", 1))
    assert [(item.operation, item.count) for item in plan.workspace] == [("tool:bash", 1)]
    assert [(item.operation, item.count) for item in plan.outside] == [("tool:send_mail", 1)]


async def test_refusals(bench: Bench) -> None:
    session, turns = await _three(bench)
    other = await bench.open()
    for bad in (RewindTo(session, "a"), RewindTo(session, "a", 1, turns[0]), RewindTo(other, "a", turn_id=turns[0])):
        with pytest.raises(InvalidInput):
            await bench.rewinds.rewind(bad)
    with pytest.raises(TurnNotFound):
        await bench.rewinds.plan(RewindTo(session, "a", 9))
    running = (await bench.turns.begin(BeginTurn(session, "four"))).turn
    for call in (bench.rewinds.plan, bench.rewinds.rewind):
        with pytest.raises(TurnRunning) as refused:
            await call(RewindTo(session, "a", 1))  # type: ignore[operator]
        assert refused.value.turn_id == running.turn_id
    await bench.work(session, running.turn_id, "x")
    await bench.rewinds.rewind(RewindTo(session, "a", turn_id=turns[1]))
    with pytest.raises(TurnSuperseded):
        await bench.rewinds.rewind(RewindTo(session, "a", 3))
    await bench.sessions.close(session)
    with pytest.raises(SessionClosed):
        await bench.rewinds.rewind(RewindTo(session, "a", 1))
