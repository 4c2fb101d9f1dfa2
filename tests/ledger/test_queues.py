"""Outbox, delta log, leases, worker beats."""

from __future__ import annotations

import pytest

from milepost.domain.effects import EffectState
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from milepost.ports.ledger import Delta, Ledger, LedgerTx, OutboxItem, OutboxKind, WorkerBeat
from milepost.storage import Hub, open_ledger
from tests.ledger.samples import NASTY, connection, in_parallel, new_turn, spec
from tests.support.postgres_server import run_apart

START, CANCEL = OutboxKind.START_TURN, OutboxKind.CANCEL_TURN


async def _lease(ledger: Ledger, owner: str, at: int, limit: int = 10) -> list[OutboxItem]:
    return await ledger.write(lambda tx: tx.outbox.lease(owner, at, 100, limit))


async def _add(ledger: Ledger, *subjects: str, at: int = 1, kind: OutboxKind = START) -> None:
    for subject in subjects:
        await ledger.write(lambda tx, subject=subject: tx.outbox.add(kind, subject, at))


async def test_items_are_leased_once_oldest_first(ledger: Ledger) -> None:
    await _add(ledger, "b", at=2)
    await _add(ledger, "c", at=3)
    await _add(ledger, "a", at=1)
    await _add(ledger, "a", at=9)  # known: nothing changes
    first = await _lease(ledger, "one", 5, limit=2)
    assert [(item.subject, item.kind, item.created_at, item.attempts) for item in first] == [
        ("a", START, 1, 1),
        ("b", START, 2, 1),
    ]
    assert [item.subject for item in await _lease(ledger, "two", 5)] == ["c"]
    assert await _lease(ledger, "two", 5) == []


async def test_items_are_not_due_before_their_time(ledger: Ledger) -> None:
    await _add(ledger, "a", at=50)
    assert await _lease(ledger, "one", 49) == []
    assert len(await _lease(ledger, "one", 50)) == 1


async def test_a_lease_runs_out(ledger: Ledger) -> None:
    await _add(ledger, "a")
    await _lease(ledger, "one", 10)
    assert await _lease(ledger, "two", 109) == []
    (again,) = await _lease(ledger, "two", 110)
    assert (again.subject, again.attempts) == ("a", 2)


async def test_a_failed_delivery_waits_and_keeps_its_error(ledger: Ledger) -> None:
    await _add(ledger, "a")
    (item,) = await _lease(ledger, "one", 10)
    await ledger.write(lambda tx: tx.outbox.retry(item.item_id, 40, NASTY))
    assert await _lease(ledger, "one", 39) == []
    (again,) = await _lease(ledger, "two", 40)
    assert (again.last_error, again.attempts) == (NASTY, 2)


async def test_delivered_and_dropped_items_do_not_return(ledger: Ledger) -> None:
    await _add(ledger, "a", "b")
    await _add(ledger, "b", kind=CANCEL, at=2)
    pending = await ledger.read(lambda tx: tx.outbox.pending("b"))
    assert pending is not None
    assert pending.kind is START
    items = await _lease(ledger, "one", 10)
    await ledger.write(lambda tx: tx.outbox.delivered(items[0].item_id, 11))
    await ledger.write(lambda tx: tx.outbox.drop("b"))
    await ledger.write(lambda tx: tx.outbox.retry(items[0].item_id, 0, "too late"))
    await ledger.write(lambda tx: tx.outbox.retry(items[1].item_id, 0, "too late"))
    await _add(ledger, "a", at=20)  # known, also after delivery
    assert await _lease(ledger, "two", 10_000) == []
    for subject in ("a", "b", "unknown"):
        assert await ledger.read(lambda tx, subject=subject: tx.outbox.pending(subject)) is None


async def test_owners_at_once_share_the_items(ledger: Ledger) -> None:
    await _add(ledger, *(f"t{n:02}" for n in range(40)))

    async def lease(n: int) -> list[OutboxItem]:
        return await _lease(ledger, f"owner{n}", 10, limit=10)

    leased = [item.subject for items in await in_parallel(8, lease) for item in items]
    assert len(leased) == len(set(leased))
    rest = await _lease(ledger, "last", 10, limit=100)
    assert len(leased) + len(rest) == 40


@pytest.mark.postgres
async def test_a_slow_owner_holds_up_nobody(postgres_ledger: Ledger, postgres_url: str) -> None:
    await _add(postgres_ledger, "a", "b")

    async def another() -> list[OutboxItem]:
        other = await open_ledger(postgres_url, Hub())
        items = await _lease(other, "fast", 10)
        await other.close()
        return items

    def slow(tx: LedgerTx) -> tuple[list[OutboxItem], list[OutboxItem]]:
        mine = tx.outbox.lease("slow", 10, 100, 1)
        return mine, run_apart(another())  # while this transaction holds its rows

    mine, others = await postgres_ledger.write(slow)
    assert [item.subject for item in mine] == ["a"]
    assert [item.subject for item in others] == ["b"]


async def test_an_item_of_a_rolled_back_transaction_does_not_exist(ledger: Ledger) -> None:
    def body(tx: LedgerTx) -> None:
        tx.outbox.add(START, "a", 1)
        raise LookupError

    with pytest.raises(LookupError):
        await ledger.write(body)
    assert await _lease(ledger, "one", 10) == []


def _pieces(turn_id: str, *texts: str, effect: str = "e", attempt: int = 1, channel: str = "text") -> list[Delta]:
    offset, pieces = 0, []
    for text in texts:
        pieces.append(Delta(turn_id, "agent", effect, attempt, channel, offset, text))
        offset += len(text)
    return pieces


async def test_pieces_come_back_in_order_of_arrival(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    first = _pieces(turn.turn_id, "a\0", "\ud83d", "\udc00 half each")
    second = _pieces(turn.turn_id, "b", attempt=2)
    await ledger.write(lambda tx: tx.deltas.add(turn.session_id, first[:2], 1))
    await ledger.write(lambda tx: tx.deltas.add(turn.session_id, second, 1))
    await ledger.write(lambda tx: tx.deltas.add(turn.session_id, first, 1))  # two known, one new

    async def read(after: int, limit: int = 100) -> list[tuple[int, Delta]]:
        return await ledger.read(lambda tx: tx.deltas.read(turn.session_id, turn.turn_id, after=after, limit=limit))

    found = await read(0)
    assert [delta for _, delta in found] == [*first[:2], *second, first[2]]
    positions = [position for position, _ in found]
    assert positions == sorted(positions)
    assert await read(positions[1]) == found[2:]
    assert await read(0, limit=2) == found[:2]
    assert await ledger.read(lambda tx: tx.deltas.read("other", turn.turn_id, after=0, limit=9)) == []


async def test_the_text_so_far_by_channel(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    text = [f"piece {n} \0 " for n in range(12)]
    add = lambda pieces: ledger.write(lambda tx: tx.deltas.add(turn.session_id, pieces, 1))  # noqa: E731
    await add(_pieces(turn.turn_id, *text))
    await add(_pieces(turn.turn_id, "hm", "m", channel="reasoning"))
    await add(_pieces(turn.turn_id, "other attempt", attempt=2))
    await add(_pieces(turn.turn_id, "other call", effect="f"))
    partial = await ledger.read(lambda tx: tx.deltas.partial("e", 1))
    assert partial == {"text": "".join(text), "reasoning": "hmm"}
    assert await ledger.read(lambda tx: tx.deltas.partial("none", 1)) == {}


async def test_an_ended_turn_takes_no_pieces(ledger: Ledger) -> None:
    turn, other = await new_turn(ledger), await new_turn(ledger)
    both = [*_pieces(turn.turn_id, "late"), *_pieces(other.turn_id, "kept", effect="f")]

    def finish(tx: LedgerTx) -> None:
        tx.turns.finish(turn.turn_id, TurnState.COMPLETED, 5, Usage())
        tx.deltas.drop_turn(turn.turn_id)

    await ledger.write(lambda tx: tx.deltas.add(turn.session_id, _pieces(turn.turn_id, "early"), 1))
    await ledger.write(finish)
    await ledger.write(lambda tx: tx.deltas.add(turn.session_id, both, 6))
    await ledger.write(lambda tx: tx.deltas.add(turn.session_id, [], 6))
    assert await ledger.read(lambda tx: (tx.deltas.partial("e", 1), tx.deltas.partial("f", 1))) == (
        {},
        {"text": "kept"},
    )


async def test_positions_are_never_used_twice(ledger: Ledger) -> None:
    turn, other = await new_turn(ledger), await new_turn(ledger)
    await ledger.write(lambda tx: tx.deltas.add(turn.session_id, _pieces(turn.turn_id, "a"), 1))
    ((first, _),) = await ledger.read(lambda tx: tx.deltas.read(turn.session_id, turn.turn_id, after=0, limit=9))
    await ledger.write(lambda tx: tx.deltas.drop_turn(turn.turn_id))
    await ledger.write(lambda tx: tx.deltas.add(other.session_id, _pieces(other.turn_id, "b"), 1))
    ((second, _),) = await ledger.read(lambda tx: tx.deltas.read(other.session_id, other.turn_id, after=0, limit=9))
    assert second > first


async def test_writers_at_once_and_a_reader_that_follows(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    seen: list[Delta] = []

    async def write(n: int) -> None:
        for piece in _pieces(turn.turn_id, *("x" * 5 for _ in range(10)), effect=f"e{n}"):
            await ledger.write(lambda tx, piece=piece: tx.deltas.add(turn.session_id, [piece], 1))

    async def page(after: int) -> list[tuple[int, Delta]]:
        return await ledger.read(lambda tx: tx.deltas.read(turn.session_id, turn.turn_id, after=after, limit=7))

    async def follow() -> None:
        after = 0
        while len(seen) < 80:
            for position, delta in await page(after):
                after = position
                seen.append(delta)

    results = await in_parallel(9, lambda n: follow() if n == 8 else write(n))
    assert results == [None] * 9
    assert len(set(seen)) == 80  # none passed over, none twice


async def test_a_lease_has_one_owner(ledger: Ledger) -> None:
    acquire = lambda owner, at, ttl=100: ledger.write(lambda tx: tx.leases.acquire("loop", owner, at, ttl))  # noqa: E731
    results = await in_parallel(6, lambda n: acquire(f"o{n}", 10))
    assert results.count(True) == 1
    owner = f"o{results.index(True)}"
    assert await acquire(owner, 50)  # renewed until 150
    assert not await acquire("late", 149)
    assert await acquire("late", 150)
    assert not await acquire(owner, 160)
    await ledger.write(lambda tx: tx.leases.release("loop", owner))  # not its own any more
    assert not await acquire(owner, 170)
    await ledger.write(lambda tx: tx.leases.release("loop", "late"))
    assert await acquire(owner, 171)
    assert await ledger.write(lambda tx: tx.leases.acquire("another", "late", 10, 1))


async def test_beats(ledger: Ledger) -> None:
    assert await ledger.read(lambda tx: tx.workers.last_beat()) is None
    week = 7 * 24 * 3600 * 1_000_000
    beats = [
        WorkerBeat("a", NASTY, ("turns", NASTY), 10),
        WorkerBeat("b", "h", (), 20),
        WorkerBeat("a", "h2", ("x",), 30),
    ]
    for beat in beats:
        await ledger.write(lambda tx, beat=beat: tx.workers.beat(beat))
    assert await ledger.read(lambda tx: tx.workers.live(20)) == [beats[2], beats[1]]
    assert await ledger.read(lambda tx: tx.workers.live(21)) == [beats[2]]
    await ledger.write(lambda tx: tx.workers.gone("a"))
    assert await ledger.read(lambda tx: tx.workers.last_beat()) == 20
    await ledger.write(lambda tx: tx.workers.beat(WorkerBeat("c", "h", (), week + 21)))
    assert [beat.worker for beat in await ledger.read(lambda tx: tx.workers.live(0))] == ["c"]


async def test_the_owner_of_a_turn_is_who_has_dispatched_its_open_call(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    one, two = spec(turn, effect_id="1"), spec(turn, effect_id="2", position="tool.1.1")

    async def seen() -> int | None:
        return await ledger.read(lambda tx: tx.workers.owner_seen(turn.turn_id))

    async def beat(worker: str, at: int) -> None:
        await ledger.write(lambda tx: tx.workers.beat(WorkerBeat(worker, "h", ("turns",), at)))

    await beat("other", 900)
    assert await seen() is None
    await ledger.write(lambda tx: tx.effects.dispatch(one, 100, NASTY))
    assert await seen() == 100, "others that live are no owners"
    await beat(NASTY, 300)
    assert await seen() == 300
    await ledger.write(lambda tx: tx.effects.dispatch(two, 310, "lost"))
    await beat(NASTY, 320)
    assert await seen() == 320
    await ledger.write(lambda tx: tx.effects.settle(one.effect_id, 1, EffectState.SUCCEEDED, 330, None))
    await beat(NASTY, 500)
    assert await seen() == 330, "who has nothing of it in hand is no owner any more"


async def test_rows_hold_their_text_as_bytes(ledger: Ledger) -> None:
    """So that what one database accepts the other does too."""
    turn = await new_turn(ledger)

    def look(tx: LedgerTx) -> object:
        query = "SELECT title, agents FROM sessions WHERE session_id = "
        return connection(tx).exec_driver_sql(query + f"'{turn.session_id}'").one()

    title, agents = await ledger.read(look)  # type: ignore[misc]
    assert bytes(title).decode("utf-8", "surrogatepass") == NASTY
    assert bytes(agents) == b'["default","zweite"]'


async def test_a_clock_that_went_back_holds_nothing_up(ledger: Ledger) -> None:
    now = 1_700_000_000_000_000
    ahead = now + 86_400_000_000

    def before(tx: LedgerTx) -> None:
        tx.outbox.add(OutboxKind.START_TURN, "trn_ahead", ahead)
        tx.outbox.lease("gone", ahead, 30_000_000, 10)
        assert tx.leases.acquire("reconcile", "gone", ahead, 60_000_000)

    await ledger.write(before)
    items = await ledger.write(lambda tx: tx.outbox.lease("here", now, 30_000_000, 10))
    assert [item.subject for item in items] == ["trn_ahead"]
    assert await ledger.write(lambda tx: tx.leases.acquire("reconcile", "here", now, 60_000_000))
    assert not await ledger.write(lambda tx: tx.leases.acquire("reconcile", "third", now + 1, 60_000_000))
