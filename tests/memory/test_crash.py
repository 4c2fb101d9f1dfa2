"""Workers that are killed between a turn's end and the end of its writing, and two that do the same work."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from milepost.bootstrap.system import SystemClock
from milepost.domain.content import Content
from milepost.domain.events import AgentOutput, AgentStarted, StreamKind
from milepost.domain.memory import MemorySettings, Scope
from milepost.domain.memory_events import MemoryWritten
from milepost.domain.messages import Sampling
from milepost.domain.turns import Turn, TurnState
from milepost.domain.usage import Usage
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.services.finishing import Ending, end_turn
from milepost.services.remembering import LEASE_US
from tests.ledger.samples import NASTY, new_turn
from tests.memory.killed import writer

ALL = (-(10**15), 10**17)


class LaterClock:
    """After every lease of now has run out."""

    def now(self) -> int:
        return SystemClock().now() + LEASE_US + 1_000_000


async def ended_turn(ledger: Ledger, *agents: str, state: TurnState = TurnState.COMPLETED) -> Turn:
    """A turn of agents with memory, ended as the product ends one."""
    turn = await new_turn(ledger, created_at=SystemClock().now())

    def body(tx: LedgerTx) -> None:
        events = []
        for agent in agents:
            started = AgentStarted(turn.turn_id, agent, "p", "m", "s", (), Sampling(), 1, memory=MemorySettings())
            events.append(NewEvent(f"{turn.turn_id}/{agent}/started", started, turn.turn_id))
            said = AgentOutput(turn.turn_id, agent, Content(f"I am {agent}."), 1, Usage())
            events.append(NewEvent(f"{turn.turn_id}/{agent}/output", said, turn.turn_id))
        now = SystemClock().now()
        tx.events.append(turn.session_id, StreamKind.SESSION, events, now)
        end_turn(tx, turn, Ending(state, "over"), now)

    await ledger.write(body)
    return turn


async def written(ledger: Ledger, turn: Turn) -> list[MemoryWritten]:
    stored = await ledger.read(
        lambda tx: tx.events.read_turn(turn.session_id, turn.turn_id, types=[MemoryWritten.TYPE])
    )
    return [decode_event(item.type, item.version, item.payload) for item in stored]  # type: ignore[misc]


async def assert_written_once(ledger: Ledger, folder: Path, turn: Turn, *agents: str) -> None:
    _, stores = writer(ledger, folder, SystemClock())
    for agent in agents:
        scope = Scope.agent(turn.session_id, agent)
        entries = (await stores.daily.read(scope, *ALL, limit=100)).entries
        assert [(entry.id, entry.text) for entry in entries] == [("t1.request", NASTY), ("t1.answer", f"I am {agent}.")]
        records = await stores.semantic.page(scope)
        sources = [source for record in records for source in record.sources]
        assert sorted(source.entry_id for source in sources) == ["t1.answer", "t1.request"]
        assert {source.turn_id for source in sources} == {turn.turn_id}
    assert [event.agent for event in await written(ledger, turn)] == list(agents)
    assert await ledger.read(lambda tx: tx.memory_tasks.count()) == 0
    await stores.semantic.close()


@pytest.mark.parametrize(
    "point", ["logged", *(pytest.param(point, marks=pytest.mark.slow) for point in ("begun", "kept", "done"))]
)
async def test_a_killed_worker_leaves_its_turn_to_the_next_one(
    sqlite_ledger: Ledger, sqlite_url: str, tmp_path: Path, point: str
) -> None:
    turn = await ended_turn(sqlite_ledger, "coder", "reviewer")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.memory.killed", str(tmp_path), sqlite_url, point
    )
    assert await asyncio.wait_for(process.wait(), 120) == -signal.SIGKILL
    assert await ledger_tasks(sqlite_ledger) == (0 if point == "done" else 1)
    # While the dead one's lease lasts, nobody touches what it may be at work on.
    now, stores = writer(sqlite_ledger, tmp_path, SystemClock())
    assert await now.run_once() == 0
    later, later_stores = writer(sqlite_ledger, tmp_path, LaterClock())
    assert await later.run_once() == (0 if point == "done" else 1)
    assert await later.run_once() == 0
    await stores.semantic.close()
    await later_stores.semantic.close()
    await assert_written_once(sqlite_ledger, tmp_path, turn, "coder", "reviewer")


async def ledger_tasks(ledger: Ledger) -> int:
    return await ledger.read(lambda tx: tx.memory_tasks.count())


async def test_two_workers_at_once_write_each_turn_once(ledger: Ledger, tmp_path: Path) -> None:
    """Two owners, in two Sessions, by two workers that take every lease for run out."""
    turns = [await ended_turn(ledger, "coder", "reviewer") for _ in range(3)]

    class Rushed:
        """Each look is long after the one before: no lease protects anything."""

        def __init__(self) -> None:
            self._looks = 0

        def now(self) -> int:
            self._looks += 1
            return SystemClock().now() + self._looks * (LEASE_US + 1)

    made = [writer(ledger, tmp_path, Rushed()) for _ in range(2)]
    await asyncio.gather(*(each.run_once() for each, _ in made))
    for _, stores in made:
        await stores.semantic.close()
    for turn in turns:
        await assert_written_once(ledger, tmp_path, turn, "coder", "reviewer")


@pytest.mark.parametrize("state", [TurnState.FAILED, TurnState.STOPPED, TurnState.INTERRUPTED])
async def test_turns_that_did_not_complete_are_written_with_what_they_have(
    sqlite_ledger: Ledger, tmp_path: Path, state: TurnState
) -> None:
    turn = await ended_turn(sqlite_ledger, "coder", state=state)
    made, stores = writer(sqlite_ledger, tmp_path, LaterClock())
    assert await made.run_once() == 1
    await stores.semantic.close()
    await assert_written_once(sqlite_ledger, tmp_path, turn, "coder")


async def test_a_turn_that_cannot_be_written_is_tried_again_and_says_why(
    sqlite_ledger: Ledger, tmp_path: Path, monkeypatch: Any
) -> None:
    turn = await ended_turn(sqlite_ledger, "coder")
    (tmp_path / "memory").write_text("in the way")
    made, stores = writer(sqlite_ledger, tmp_path, LaterClock())
    assert await made.run_once() == 0
    (task,) = await sqlite_ledger.read(lambda tx: tx.memory_tasks.of_session(turn.session_id))
    assert task.attempts == 1 and "cannot be used" in (task.last_error or "")
    (tmp_path / "memory").unlink()

    class MuchLater:
        def now(self) -> int:
            return SystemClock().now() + 10 * LEASE_US

    again, again_stores = writer(sqlite_ledger, tmp_path, MuchLater())
    assert await again.run_once() == 1
    await stores.semantic.close()
    await again_stores.semantic.close()
    await assert_written_once(sqlite_ledger, tmp_path, turn, "coder")
