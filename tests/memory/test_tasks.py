"""Work on memory that is to be done: leased, done once, and never lost."""

from __future__ import annotations

from milepost.ports.ledger import Ledger
from milepost.ports.memory_rows import MemoryTask, MemoryTaskKind
from milepost.ports.notifier import MEMORY_TOPIC
from milepost.storage import Hub
from tests.ledger.samples import NASTY, new_turn

WRITE = MemoryTaskKind.WRITE


async def lease(ledger: Ledger, owner: str, at: int, limit: int = 10) -> list[MemoryTask]:
    return await ledger.write(lambda tx: tx.memory_tasks.lease(owner, at, 100, limit))


async def test_a_task_is_leased_until_it_is_done(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    for subject, at in (("b", 2), ("a", 1), ("a", 9)):
        await ledger.write(lambda tx, s=subject, t=at: tx.memory_tasks.add(WRITE, s, turn.session_id, t))
    (first,) = await lease(ledger, "one", 5, limit=1)
    assert (first.subject, first.kind, first.session_id, first.attempts) == ("a", WRITE, turn.session_id, 1)
    assert [task.subject for task in await lease(ledger, "two", 5)] == ["b"]
    assert await lease(ledger, "two", 5) == []
    assert await ledger.write(lambda tx: tx.memory_tasks.renew(first, "one", 300))
    assert not await ledger.write(lambda tx: tx.memory_tasks.renew(first, "two", 900))
    assert [task.subject for task in await lease(ledger, "two", 200)] == ["b"]
    (again,) = [task for task in await lease(ledger, "two", 400) if task.subject == "a"]
    assert again.attempts == 2
    await ledger.write(lambda tx: tx.memory_tasks.retry(again, 900, NASTY))
    left = await ledger.read(lambda tx: tx.memory_tasks.of_session(turn.session_id))
    assert [(task.subject, task.last_error) for task in left] == [("a", NASTY), ("b", None)]
    assert [task.subject for task in await lease(ledger, "one", 899)] == ["b"]
    (last,) = [task for task in await lease(ledger, "one", 950) if task.subject == "a"]
    await ledger.write(lambda tx: tx.memory_tasks.done(last))
    assert await ledger.read(lambda tx: tx.memory_tasks.count()) == 1


async def test_a_clock_that_went_back_leaves_nothing_behind(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    far = 10**12
    await ledger.write(lambda tx: tx.memory_tasks.add(WRITE, "a", turn.session_id, far))
    assert len(await lease(ledger, "one", 5)) == 1


async def test_a_new_task_wakes_the_loops(sqlite_ledger: Ledger) -> None:
    hub = sqlite_ledger._notifier  # type: ignore[attr-defined]
    assert isinstance(hub, Hub)
    woken = hub.subscribe(MEMORY_TOPIC)
    turn = await new_turn(sqlite_ledger)
    await sqlite_ledger.write(lambda tx: tx.memory_tasks.add(WRITE, "a", turn.session_id, 1))
    assert await woken.wait(10)
    woken.close()
