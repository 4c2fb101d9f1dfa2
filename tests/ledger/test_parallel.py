"""Many writers at once."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.domain.effects import EffectState
from milepost.domain.events import RunStarted, StreamKind
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from milepost.ledger.chain import verify_chain
from milepost.ports.ledger import Delta, Ledger, LedgerTx, NewEvent, OutboxKind, WorkerBeat
from tests.ledger.samples import add_session, begun, in_parallel, spec, turn

TOTAL = 10_000
HOT = 4_000


@pytest.mark.timeout(300)  # a machine that is busy otherwise
async def test_ten_thousand_parallel_appends(ledger: Ledger) -> None:
    """To one stream and to many: nothing is lost or doubled, numbers have no gap, chains hold."""

    def stream_of(n: int) -> str:
        return "run_hot" if n < HOT else f"run_{n % 97}"

    async def append(n: int) -> int:
        event = NewEvent(f"k{n}", RunStarted(f"{n}", "a", {"n": n}))
        (seq,) = await ledger.write(lambda tx: tx.events.append(stream_of(n), StreamKind.RUN, [event], n))
        return seq

    seqs = await in_parallel(TOTAL, append)
    assert [seq for seq in seqs if not isinstance(seq, int)] == []
    expected: dict[str, dict[str, int]] = {}
    for n, seq in enumerate(seqs):
        expected.setdefault(stream_of(n), {})[f"k{n}"] = seq
    for stream, keys in expected.items():
        stored = await ledger.read(lambda tx, stream=stream: tx.events.read(stream, limit=10_000))
        assert {event.key: event.seq for event in stored} == keys
        head = await ledger.read(lambda tx, stream=stream: tx.events.head(stream))
        assert verify_chain(stored) == head == (len(keys), head[1])


async def test_first_appends_at_once_also_when_some_roll_back(ledger: Ledger) -> None:
    """Who makes the stream and who finds it made take the same lock."""
    for round_ in range(8):
        stream = f"run_{round_}"

        async def append(n: int, stream: str = stream) -> int:
            def body(tx: LedgerTx) -> int:
                (seq,) = tx.events.append(stream, StreamKind.RUN, [NewEvent(f"k{n}", RunStarted("r", "a", {}))], n)
                if n % 3 == 0:
                    raise LookupError
                return seq

            return await ledger.write(body)

        results = await in_parallel(40, append)
        assert sorted(seq for seq in results if isinstance(seq, int)) == list(range(1, 27))
        assert sum(isinstance(result, LookupError) for result in results) == 14


async def test_fifty_parallel_writers_of_every_kind(ledger: Ledger) -> None:
    """No error at all: no 'database is locked', no deadlock, no lost update, while readers read."""

    def first(tx: LedgerTx) -> tuple[Any, Any]:
        made = add_session(tx)
        new = turn(made.session_id, tx.turns.lock_session(made.session_id))
        tx.turns.add(new)
        tx.events.append(made.session_id, StreamKind.SESSION, [begun(new)], 1)
        tx.outbox.add(OutboxKind.START_TURN, new.turn_id, 1)
        return new, spec(new)

    async def writer(n: int) -> None:
        new, effect = await ledger.write(first)
        await ledger.write(lambda tx: tx.turns.claim(new.turn_id, "run"))
        dispatched = await ledger.write(lambda tx: tx.effects.dispatch(effect, 2, f"w{n}"))
        for piece in range(3):
            delta = Delta(new.turn_id, "a", effect.effect_id, 1, "text", piece * 3, "abc")
            await ledger.write(lambda tx, delta=delta: tx.deltas.add(new.session_id, [delta], 3))
            await ledger.write(lambda tx: tx.workers.beat(WorkerBeat(f"w{n}", "h", ("q",), 5)))
            await ledger.write(lambda tx: tx.leases.acquire("loop", f"w{n}", 5, 100))
            assert (await ledger.read(lambda tx: tx.turns.get(new.turn_id))).claimed_run == "run"
        for item in await ledger.write(lambda tx: tx.outbox.lease(f"w{n}", 9, 100, 2)):
            await ledger.write(lambda tx, item=item: tx.outbox.delivered(item.item_id, 10))

        def end(tx: LedgerTx) -> None:
            tx.effects.settle(effect.effect_id, dispatched.attempt, EffectState.SUCCEEDED, 11, b"{}")
            tx.turns.finish(new.turn_id, TurnState.COMPLETED, 11, Usage())
            tx.deltas.drop_turn(new.turn_id)

        await ledger.write(end)

    assert [error for error in await in_parallel(50, writer) if error is not None] == []
    assert await ledger.read(lambda tx: tx.turns.list_running(after=None, limit=10)) == []
    assert len(await ledger.read(lambda tx: tx.workers.live(5))) == 50
