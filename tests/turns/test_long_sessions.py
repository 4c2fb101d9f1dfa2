"""A long Session costs a turn no more than a short one, and a long turn its next call no more than a short one."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from activities.conversation import MAX_ANSWERS, DecodedEvents
from milepost.domain.content import INLINE_LIMIT_BYTES
from milepost.ledger.chain import StoredEvent
from milepost.storage import open_ledger, open_notifier
from tests.support.driven import AGENT, CountedLedger, Driver, Work, short_memory, stored, unique_payloads

OUTPUT = 10_000


@pytest.fixture
async def driver(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Driver]:
    notifier = await open_notifier(sqlite_url)
    ledger = CountedLedger(await open_ledger(sqlite_url, notifier))
    yield Driver(ledger, notifier, tmp_path, lambda: OUTPUT)
    await ledger.close()
    await notifier.close()


async def _next_turn(driver: Driver, session: str) -> tuple[int, int]:
    """One more turn; SQLite's work for its begin and for its model's context."""
    ledger = driver.ledger
    assert isinstance(ledger, CountedLedger)
    ledger.work = begin = Work()
    turn = await driver.begin(session)
    ledger.work = None
    await driver.prepare(session, turn)
    ledger.work = context = Work()
    await driver.conversations.whole(turn, AGENT, 1)
    ledger.work = None
    await driver.answer(session, turn)
    return begin.instructions, context.instructions


async def test_the_work_of_a_begin_and_of_a_context_does_not_grow_with_the_session(driver: Driver) -> None:
    session = await driver.open()
    with short_memory(4):
        for _ in range(22):
            await driver.turn(session)
        short = await _next_turn(driver, session)
        for _ in range(22):
            await driver.turn(session)
        long = await _next_turn(driver, session)
    assert short[0] > 100 and short[1] > 300, "the work is counted"
    assert long[0] <= 1.1 * short[0]
    assert long[1] <= 1.1 * short[1]
    with short_memory(40):
        assert (await _next_turn(driver, session))[1] > long[1], "a longer memory is more work"


@pytest.mark.parametrize("sizes", [[OUTPUT], [2_000, 40_000, 300_000]], ids=["even", "mixed"])
async def test_the_ledger_keeps_little_more_than_the_payloads_compressed(
    driver: Driver, tmp_path: Path, sizes: list[int]
) -> None:
    driver.size = itertools.cycle(sizes).__next__
    session = await driver.open()
    measured = []
    with short_memory(0):
        for turns in (2, 30 // len(sizes)):
            for _ in range(turns):
                await driver.turn(session)
            unique = await unique_payloads(driver.ledger, [session], tmp_path)
            measured.append((unique.compressed, stored(tmp_path)))
    (before, first), (after, found) = measured
    # The last page of each table that grows is not full.
    growing = sum(found.tables[name] > first.tables[name] for name in found.tables)
    assert found.kept - first.kept <= 1.3 * (after - before) + growing * 4096
    assert unique.compressed < unique.plain / 2
    assert (found.blobs > 0) is (max(sizes) > INLINE_LIMIT_BYTES)


async def test_the_work_of_a_call_does_not_grow_with_the_turn(driver: Driver) -> None:
    session = await driver.open()
    turn = await driver.begin(session)
    await driver.prepare(session, turn)
    ledger = driver.ledger
    assert isinstance(ledger, CountedLedger)
    works = []
    for round_ in range(1, 12):
        answer = await driver.ask(session, turn, round_, calls=True)
        ledger.work = at_hand = Work()
        known = await driver.conversations.call(turn, AGENT, answer.effect_id)
        assert at_hand.instructions == 0, "who recorded an answer need not read it for its calls"
        driver.conversations._answers.clear()
        ledger.work = Work()
        context = await driver.conversations.call(turn, AGENT, answer.effect_id)
        works.append(ledger.work.instructions)
        ledger.work = None
        assert (known.started, known.events) == (context.started, context.events)
        assert known.session == context.session and known.turn.generation == context.turn.generation
        assert context.model_call(answer.effect_id).round == round_
        await driver.run_calls(session, turn, round_, answer)
    assert 0 < works[-1] <= 1.1 * works[0]


async def test_answers_at_hand_are_bounded(driver: Driver) -> None:
    session = await driver.open()
    for _ in range(MAX_ANSWERS // 2 + 2):
        await driver.turn(session)
    assert len(driver.conversations._answers) == MAX_ANSWERS


def test_decoded_events_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    decodings: list[int] = []

    def decode(type_: str, version: int, payload: bytes) -> object:
        decodings.append(payload[0])
        return payload

    monkeypatch.setattr("activities.conversation.decode_event", decode)
    kept = DecodedEvents(limit=100)

    def event(number: int) -> None:
        payload = bytes([number]) * 40
        assert kept.event(StoredEvent("s", number, "k", "t", 1, 1, None, payload, bytes([number]))) == payload

    for number in (1, 2, 1, 3, 1, 2):
        event(number)
        assert kept.bytes <= 100
    assert decodings == [1, 2, 3, 2], "the one that was used least lately made room"
    large = StoredEvent("s", 9, "k", "t", 1, 1, None, bytes(101), b"large")
    assert kept.event(large) == bytes(101)
    assert kept.bytes <= 100


async def test_what_was_decoded_is_not_decoded_again(driver: Driver) -> None:
    session = await driver.open()
    for _ in range(3):
        await driver.turn(session)
    turn = await driver.begin(session)
    await driver.prepare(session, turn)
    first = await driver.conversations.whole(turn, AGENT, 1)
    again = await driver.conversations.whole(turn, AGENT, 1)
    assert again == first
    assert again.started is first.started


async def test_the_work_of_a_round_does_not_grow_with_the_turn(driver: Driver) -> None:
    """All of it: the model call and the command, in reads and writes."""
    ledger = driver.ledger
    assert isinstance(ledger, CountedLedger)
    driver.size = lambda: 300
    session = await driver.open()
    turn = await driver.begin(session)
    await driver.prepare(session, turn)
    works = []
    for round_ in range(1, 41):
        ledger.work = Work()
        answer = await driver.ask(session, turn, round_, calls=True)
        await driver.run_calls(session, turn, round_, answer)
        works.append(ledger.work.instructions)
        ledger.work = None
    early, late = sorted(works[5:10])[2], sorted(works[-5:])[2]
    assert early > 500 and late <= 1.1 * early, works
