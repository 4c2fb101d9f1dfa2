"""Streams: order, idempotency, the hash chain, append-only."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.domain.content import Content
from milepost.domain.errors import InvalidInput, LedgerCorrupt, TurnNotRunning
from milepost.domain.events import (
    AgentOutput,
    AttemptEnded,
    AttemptStarted,
    EffectReconciled,
    Event,
    InstanceStarted,
    RunEnded,
    RunStarted,
    StreamKind,
    ToolStarted,
    TurnCompleted,
)
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from milepost.ledger.chain import GENESIS, StoredEvent, verify_chain
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from tests.ledger.samples import NASTY, begun, new_id, new_turn, refused, sql
from tests.support.databases import OpenLedger

STREAMS: list[tuple[StreamKind, list[Event]]] = [
    (StreamKind.RUN, [RunStarted("r", NASTY, {NASTY: [2**80, None, 1.5]}), RunEnded("r", "failed")]),
    (StreamKind.ATTEMPT, [AttemptStarted("a", Content(NASTY), 3), AttemptEnded("a", "kept")]),
    (StreamKind.INSTANCE, [InstanceStarted("1", ("api",)), InstanceStarted("2", ("api", "worker"))]),
]


def _decoded(stored: list[StoredEvent]) -> list[Event]:
    return [decode_event(event.type, event.version, event.payload) for event in stored]


async def _append(ledger: Ledger, stream: str, kind: StreamKind, *events: NewEvent, at: int = 5) -> list[int]:
    return await ledger.write(lambda tx: tx.events.append(stream, kind, events, at))


async def _fill(ledger: Ledger, count: int) -> str:
    stream = new_id("run")
    started = [NewEvent(f"k{n}", RunStarted(stream, "a", {"n": n})) for n in range(count)]
    await _append(ledger, stream, StreamKind.RUN, *started)
    return stream


@pytest.mark.parametrize(("kind", "events"), STREAMS, ids=lambda value: str(value) if isinstance(value, str) else "")
async def test_every_kind_keeps_events_in_order(ledger: Ledger, kind: StreamKind, events: list[Event]) -> None:
    stream = new_id(kind.value)
    new = [NewEvent(f"{n}", event) for n, event in enumerate(events)]
    assert await _append(ledger, stream, kind, *new, at=7) == [1, 2]
    stored = await ledger.read(lambda tx: tx.events.read(stream))
    assert _decoded(stored) == events
    assert [(event.stream_id, event.seq, event.key, event.at) for event in stored] == [
        (stream, 1, "0", 7),
        (stream, 2, "1", 7),
    ]
    assert await ledger.read(lambda tx: tx.events.head(stream)) == verify_chain(stored)


async def test_the_session_kind_keeps_the_turn(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    (stored,) = await ledger.read(lambda tx: tx.events.read(turn.session_id))
    assert stored.turn_id == turn.turn_id
    assert _decoded([stored]) == [begun(turn).event]


async def test_a_stream_that_does_not_exist_is_empty(ledger: Ledger) -> None:
    assert await ledger.read(lambda tx: (tx.events.head("none"), tx.events.read("none"))) == ((0, GENESIS), [])


async def test_appending_a_known_key_again_changes_nothing(ledger: Ledger) -> None:
    stream = await _fill(ledger, 3)
    before = await ledger.read(lambda tx: tx.events.read(stream))
    other = RunStarted(stream, "other content", {})
    again = [NewEvent("k1", other), NewEvent("new", other), NewEvent("k0", other), NewEvent("new", other)]
    assert await _append(ledger, stream, StreamKind.RUN, *again) == [2, 4, 1, 4]
    after = await ledger.read(lambda tx: tx.events.read(stream))
    assert after[:3] == before
    assert [event.key for event in after] == ["k0", "k1", "k2", "new"]
    verify_chain(after)


async def test_keys_belong_to_their_stream(ledger: Ledger) -> None:
    first, second = await _fill(ledger, 1), await _fill(ledger, 1)
    events = await ledger.read(lambda tx: [tx.events.read(first)[0], tx.events.read(second)[0]])
    assert events[0].key == events[1].key
    assert events[0].hash != events[1].hash


async def test_large_appends_and_payloads(ledger: Ledger) -> None:
    stream = new_id("run")
    many = [NewEvent(f"k{n}", RunStarted(stream, "a", {"text": "é" * 400})) for n in range(300)]
    huge = NewEvent("huge", RunStarted(stream, "a", {"text": "x" * 5_000_000}))
    assert await _append(ledger, stream, StreamKind.RUN, *many, huge) == list(range(1, 302))
    stored = await ledger.read(lambda tx: tx.events.read(stream))
    verify_chain(stored)
    assert len(stored[-1].payload) > 5_000_000
    with pytest.raises(InvalidInput, match="too many"):
        await _append(ledger, stream, StreamKind.RUN, *(NewEvent(f"z{n}", RunEnded(stream, "x")) for n in range(5000)))


async def test_pages(ledger: Ledger) -> None:
    stream = await _fill(ledger, 20)

    async def seqs(**bounds: int) -> list[int]:
        return [event.seq for event in await ledger.read(lambda tx: tx.events.read(stream, **bounds))]

    assert await seqs(after=5, before=9) == [6, 7, 8]
    assert await seqs(after=18) == [19, 20]
    assert await seqs(limit=3) == [1, 2, 3]
    assert await seqs(before=3) == [1, 2]
    assert await seqs(after=20) == []
    assert await seqs(limit=0) == []


async def test_the_events_of_one_turn(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    started = ToolStarted(turn.turn_id, "a", "e", 1, 1, 0, "c", "bash")
    stray = NewEvent("other", ToolStarted("t2", "a", "e", 1, 1, 0, "c", "bash"), "t2")
    await _append(ledger, turn.session_id, StreamKind.SESSION, NewEvent("s", started, turn.turn_id), stray)
    read = lambda *types: ledger.read(lambda tx: tx.events.read_turn(turn.session_id, turn.turn_id, types=types))  # noqa: E731
    assert [event.type for event in await read()] == ["turn.begun", "tool.started"]
    assert [event.type for event in await read("tool.started", "tool.finished")] == ["tool.started"]
    assert await ledger.read(lambda tx: tx.events.read_turn("another stream", turn.turn_id)) == []


async def test_one_event_by_its_key(ledger: Ledger) -> None:
    stream = await _fill(ledger, 3)
    found = await ledger.read(lambda tx: tx.events.find(stream, "k1"))
    assert found == (await ledger.read(lambda tx: tx.events.read(stream)))[1]
    assert await ledger.read(lambda tx: tx.events.find(stream, "k9")) is None
    assert await ledger.read(lambda tx: tx.events.find("another", "k1")) is None


async def test_named_events_of_several_turns(ledger: Ledger) -> None:
    stream = new_id("ses")
    event = ToolStarted("t", "a", "e", 1, 1, 0, "c", "bash")
    done = AgentOutput("t", "a", Content("x"), 1, Usage())
    new = [NewEvent(f"{turn}{n}", each, turn) for turn in ("t1", "t2", "t3") for n, each in enumerate((event, done))]
    await _append(ledger, stream, StreamKind.SESSION, *new)

    async def keys(turns: list[str], *types: str) -> list[str]:
        return [found.key for found in await ledger.read(lambda tx: tx.events.read_turns(stream, turns, types=types))]

    assert await keys(["t3", "t1"], "tool.started", "agent.output") == ["t10", "t11", "t30", "t31"]
    assert await keys(["t2", "none"], "agent.output") == ["t21"]
    assert await keys([], "agent.output") == []
    with pytest.raises(InvalidInput, match="too many"):
        await keys([f"t{n}" for n in range(201)], "agent.output")


async def test_an_event_of_another_kind_is_refused(ledger: Ledger) -> None:
    stream = await _fill(ledger, 1)
    with pytest.raises(InvalidInput, match=r"instance\.started"):
        await _append(ledger, stream, StreamKind.RUN, NewEvent("x", InstanceStarted("1", ())))
    with pytest.raises(InvalidInput, match="of kind 'run'"):
        await _append(ledger, stream, StreamKind.INSTANCE, NewEvent("x", InstanceStarted("1", ())))
    assert await ledger.read(lambda tx: tx.events.head(stream)[0]) == 1


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b", "x" * 1025])
async def test_identifiers_that_cannot_be_stored_are_refused_alike(ledger: Ledger, bad: str) -> None:
    ended = RunEnded("r", "done")
    for stream, key in ((bad, "k"), ("stream", bad)):
        with pytest.raises(InvalidInput):
            await _append(ledger, stream, StreamKind.RUN, NewEvent(key, ended))
    with pytest.raises(InvalidInput):
        await ledger.read(lambda tx: tx.sessions.get(bad))
    with pytest.raises(InvalidInput):
        await ledger.read(lambda tx: tx.events.read(bad))


async def test_nothing_follows_the_end_of_a_turn_but_late_facts(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    completed = NewEvent("end", TurnCompleted(turn.turn_id, Usage()), turn.turn_id)

    def finish(tx: LedgerTx) -> None:
        tx.events.append(turn.session_id, StreamKind.SESSION, [completed], 9)
        tx.turns.finish(turn.turn_id, TurnState.COMPLETED, 9, Usage())

    await ledger.write(finish)
    late = NewEvent("late", ToolStarted(turn.turn_id, "a", "e", 1, 1, 0, "c", "bash"), turn.turn_id)
    fact = NewEvent("fact", EffectReconciled(turn.turn_id, "e", "applied", "me"), turn.turn_id)
    with pytest.raises(TurnNotRunning):
        await _append(ledger, turn.session_id, StreamKind.SESSION, fact, late)
    # A retried activity that appends what it appended before is no new event.
    assert await _append(ledger, turn.session_id, StreamKind.SESSION, completed, begun(turn)) == [2, 1]
    assert await _append(ledger, turn.session_id, StreamKind.SESSION, fact) == [3]


def _of(stream: str) -> str:
    return f"stream = (SELECT number FROM identifiers WHERE name = '{stream}')"


async def test_the_chain_shows_every_change(opened: OpenLedger) -> None:
    ledger, url = opened.ledger, opened.url
    stream = await _fill(ledger, 6)
    read = lambda: ledger.read(lambda tx: tx.events.read(stream))  # noqa: E731
    head = await ledger.read(lambda tx: tx.events.head(stream))
    assert verify_chain(await read()) == head
    if url.startswith("sqlite"):
        unlock = ["DROP TRIGGER events_no_update", "DROP TRIGGER events_no_delete"]
    else:
        unlock = ["ALTER TABLE events DISABLE TRIGGER USER"]
    sql(url, *unlock, f"DELETE FROM events WHERE {_of(stream)} AND seq = 6")
    assert verify_chain(await read()) != head  # the end of the chain is known to the stream's row
    with pytest.raises(LedgerCorrupt, match="seq 6"):
        await _append(ledger, stream, StreamKind.RUN, NewEvent("next", RunEnded(stream, "x")))
    sql(url, f"UPDATE events SET at = at + 1 WHERE {_of(stream)} AND seq = 4")
    with pytest.raises(LedgerCorrupt, match="hash of seq 4"):
        verify_chain(await read())
    sql(url, f"DELETE FROM events WHERE {_of(stream)} AND seq = 2")
    with pytest.raises(LedgerCorrupt, match="seq 2 is missing"):
        verify_chain(await read())


@pytest.mark.parametrize("column", ["event_key", "type", "version", "at", "turn_id", "payload"])
async def test_the_chain_covers_every_column(sqlite_ledger: Ledger, column: str) -> None:
    stream = await _fill(sqlite_ledger, 2)
    first, second = await sqlite_ledger.read(lambda tx: tx.events.read(stream))
    field = {"event_key": "key"}.get(column, column)
    changed: object = {"version": 2, "at": 6, "payload": b"{}"}.get(field, "other")
    values = {name: getattr(first, name) for name in StoredEvent.__slots__} | {field: changed}
    with pytest.raises(LedgerCorrupt, match="hash of seq 1"):
        verify_chain([StoredEvent(**values), second])


async def test_events_cannot_be_changed_or_deleted(opened: OpenLedger) -> None:
    stream = await _fill(opened.ledger, 2)
    before = await opened.ledger.read(lambda tx: tx.events.read(stream))
    assert refused(opened.url, f"UPDATE events SET at = 0 WHERE {_of(stream)}")
    assert refused(opened.url, f"DELETE FROM events WHERE {_of(stream)}")
    if opened.url.startswith("postgresql"):
        assert refused(opened.url, "TRUNCATE events")
    assert await opened.ledger.read(lambda tx: tx.events.read(stream)) == before


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(), max_size=30), min_size=1, max_size=6))
async def test_any_text_survives_storage(ledger: Ledger, texts: list[str]) -> None:
    stream = f"run_{uuid.uuid4().hex}"
    events: list[Event] = [RunStarted(stream, text, {text: text}) for text in texts]
    await _append(ledger, stream, StreamKind.RUN, *(NewEvent(f"{n}", event) for n, event in enumerate(events)))
    stored = await ledger.read(lambda tx: tx.events.read(stream))
    assert _decoded(stored) == events
    verify_chain(stored)
