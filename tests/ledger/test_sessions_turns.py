"""Sessions and turns: rows come back whole; one running turn; one terminal state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from milepost.domain.errors import (
    IdempotencyMismatch,
    IllegalTransition,
    InvalidInput,
    SessionNotFound,
    TurnClaimed,
    TurnNotFound,
    TurnNotRunning,
    TurnRunning,
)
from milepost.domain.sessions import SessionMode, SessionStatus, Workspace
from milepost.domain.turns import Turn, TurnState
from milepost.domain.usage import Usage
from milepost.ports.ledger import Ledger, LedgerTx
from tests.ledger.samples import NASTY, add_session, in_parallel, new_id, new_turn, refused, session, sql, turn
from tests.support.databases import OpenLedger


async def test_sessions_come_back_whole(ledger: Ledger) -> None:
    full = await ledger.write(
        lambda tx: add_session(
            tx, mode=SessionMode.COORDINATOR, status=SessionStatus.CLOSED, agents=(), image=NASTY, closed_at=2**50
        )
    )
    assert await ledger.read(lambda tx: tx.sessions.get(full.session_id)) == full


async def test_one_workspace_per_path(ledger: Ledger) -> None:
    path = "/tmp/\udcff" + "x" * 4000  # as Python shows a file name that is not UTF-8

    async def resolve(_n: int) -> Workspace:
        return await ledger.write(lambda tx: tx.sessions.workspace(path, Workspace(new_id("ws"), path, 1)))

    found = await in_parallel(8, resolve)
    assert len(set(found)) == 1
    assert found[0].path == path


async def test_pages_of_sessions_are_newest_first(ledger: Ledger) -> None:
    def body(tx: LedgerTx) -> list[str]:
        # Ids that databases sort differently unless told how; two of one time.
        ids = [("a_B", 10), ("a-b", 11), ("aa", 12), ("a_b", 12), ("ab", 13)]
        return [add_session(tx, session_id=name, created_at=at).session_id for name, at in ids]

    names = await ledger.write(body)
    await ledger.write(lambda tx: tx.sessions.set_status("aa", SessionStatus.CLOSED, 5))

    async def page(status: SessionStatus | None, before: str | None, limit: int) -> list[str]:
        rows = await ledger.read(lambda tx: tx.sessions.page(status=status, before=before, limit=limit))
        return [row.session_id for row in rows]

    assert await page(None, None, 10) == list(reversed([*names[:2], "a_b", "aa", "ab"]))
    assert await page(None, "ab", 2) == ["aa", "a_b"]
    assert await page(SessionStatus.ACTIVE, "ab", 2) == ["a_b", "a-b"]
    assert await page(SessionStatus.CLOSED, None, 10) == ["aa"]
    with pytest.raises(SessionNotFound):
        await page(None, "unknown", 1)


async def test_status(ledger: Ledger) -> None:
    made = await ledger.write(add_session)
    await ledger.write(lambda tx: tx.sessions.set_status(made.session_id, SessionStatus.CLOSED, 8))
    found = await ledger.read(lambda tx: tx.sessions.get(made.session_id))
    assert found == replace(made, status=SessionStatus.CLOSED, closed_at=8)
    for use in (
        lambda tx: tx.sessions.set_status("no", SessionStatus.CLOSED, 8),
        lambda tx: tx.sessions.get("no"),
        lambda tx: tx.turns.lock_session("no"),
    ):
        with pytest.raises(SessionNotFound):
            await ledger.write(use)


async def test_a_session_needs_its_workspace(ledger: Ledger) -> None:
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        await ledger.write(lambda tx: tx.sessions.add(session(Workspace("none", "/tmp", 1))))


async def test_turns_come_back_whole(ledger: Ledger) -> None:
    begun = await new_turn(ledger, idempotency_key=NASTY, superseded=True)
    assert await ledger.read(lambda tx: tx.turns.get(begun.turn_id)) == begun
    assert await ledger.read(lambda tx: tx.turns.find(begun.session_id, NASTY)) == begun
    assert await ledger.read(lambda tx: tx.turns.running(begun.session_id)) == begun
    assert await ledger.read(lambda tx: tx.turns.find(begun.session_id, "other")) is None
    usage = Usage(10**25, 1, 2, 3, complete=False)
    await ledger.write(lambda tx: tx.turns.finish(begun.turn_id, TurnState.FAILED, 77, usage, "some_code", NASTY))
    ended = await ledger.read(lambda tx: tx.turns.get(begun.turn_id))
    expected = {"state": TurnState.FAILED, "ended_at": 77, "usage": usage}
    assert ended == replace(begun, **expected, error_code="some_code", error_message=NASTY)
    assert await ledger.read(lambda tx: tx.turns.running(begun.session_id)) is None
    with pytest.raises(TurnNotFound):
        await ledger.read(lambda tx: tx.turns.get("no"))


async def test_one_running_turn_also_when_many_begin_at_once(ledger: Ledger) -> None:
    made = await ledger.write(add_session)

    async def begin(_n: int) -> Turn:
        def body(tx: LedgerTx) -> Turn:
            new = turn(made.session_id, tx.turns.lock_session(made.session_id))
            tx.turns.add(new)
            return new

        return await ledger.write(body)

    results = await in_parallel(12, begin)
    begun = [result for result in results if isinstance(result, Turn)]
    refusals = [result for result in results if not isinstance(result, Turn)]
    assert len(begun) == 1
    assert {type(refusal) for refusal in refusals} == {TurnRunning}
    assert {refusal.turn_id for refusal in refusals} == {begun[0].turn_id}


async def test_the_database_itself_refuses_a_second_running_turn(ledger: Ledger) -> None:
    made = await ledger.write(add_session)

    async def begin(n: int) -> None:  # without the lock: the index has to hold
        await ledger.write(lambda tx: tx.turns.add(turn(made.session_id, n + 1)))

    results = await in_parallel(12, begin)
    assert sum(result is None for result in results) == 1
    assert {type(result) for result in results if result is not None} == {TurnRunning}


async def test_numbers_count_from_one(ledger: Ledger) -> None:
    made = await ledger.write(add_session)
    for expected in (1, 2, 3):

        def body(tx: LedgerTx) -> int:
            number = tx.turns.lock_session(made.session_id)
            new = turn(made.session_id, number)
            tx.turns.add(new)
            tx.turns.finish(new.turn_id, TurnState.COMPLETED, 5, Usage())
            return number

        assert await ledger.write(body) == expected
    page = await ledger.read(lambda tx: tx.turns.page(made.session_id, before_number=None, limit=2))
    assert [row.number for row in page] == [3, 2]
    page = await ledger.read(lambda tx: tx.turns.page(made.session_id, before_number=2, limit=5))
    assert [row.number for row in page] == [1]
    with pytest.raises(InvalidInput, match="number 3"):
        await ledger.write(lambda tx: tx.turns.add(turn(made.session_id, 3)))


async def test_ids_and_idempotency_keys_are_used_once(ledger: Ledger) -> None:
    first = await new_turn(ledger, idempotency_key="key")
    await ledger.write(lambda tx: tx.turns.finish(first.turn_id, TurnState.STOPPED, 5, Usage()))
    same_key = turn(first.session_id, 2, idempotency_key="key")
    same_id = turn(first.session_id, 2, turn_id=first.turn_id)
    for other, field in ((same_key, "idempotency_key"), (same_id, "turn_id")):
        with pytest.raises(IdempotencyMismatch) as refusal:
            await ledger.write(lambda tx, other=other: tx.turns.add(other))
        assert refusal.value.field == field
    elsewhere = await new_turn(ledger, idempotency_key="key")
    assert elsewhere.session_id != first.session_id
    with pytest.raises(InvalidInput):
        await ledger.write(lambda tx: tx.turns.add(turn(first.session_id, 2, idempotency_key="ü" * 600)))


async def test_a_turn_is_claimed_by_one_run(ledger: Ledger) -> None:
    begun = await new_turn(ledger)

    async def claim(n: int) -> Turn:
        return await ledger.write(lambda tx: tx.turns.claim(begun.turn_id, f"run{n}"))

    results = await in_parallel(6, claim)
    winner = next(result for result in results if isinstance(result, Turn))
    assert sum(isinstance(result, TurnClaimed) for result in results) == 5
    again = await ledger.write(lambda tx: tx.turns.claim(begun.turn_id, str(winner.claimed_run)))
    assert again == winner
    await ledger.write(lambda tx: tx.turns.finish(begun.turn_id, TurnState.COMPLETED, 5, Usage()))
    with pytest.raises(TurnClaimed, match="has ended"):
        await ledger.write(lambda tx: tx.turns.claim(begun.turn_id, str(winner.claimed_run)))
    with pytest.raises(TurnNotFound):
        await ledger.write(lambda tx: tx.turns.claim("no", "run"))


async def test_dispatch_and_stop_keep_the_first_time(ledger: Ledger) -> None:
    begun = await new_turn(ledger)
    for at in (5, 6):
        await ledger.write(lambda tx, at=at: tx.turns.mark_dispatched(begun.turn_id, at))
        await ledger.write(lambda tx, at=at: tx.turns.request_stop(begun.turn_id, at))
    found = await ledger.read(lambda tx: tx.turns.get(begun.turn_id))
    assert (found.dispatched_at, found.stop_requested_at) == (5, 5)
    await ledger.write(lambda tx: tx.turns.finish(begun.turn_id, TurnState.STOPPED, 7, Usage()))
    with pytest.raises(TurnNotRunning):
        await ledger.write(lambda tx: tx.turns.request_stop(begun.turn_id, 9))
    with pytest.raises(TurnNotFound):
        await ledger.write(lambda tx: tx.turns.request_stop("no", 9))


async def test_running_turns_by_id(ledger: Ledger) -> None:
    ids = sorted([(await new_turn(ledger)).turn_id for _ in range(4)])
    ended = ids.pop(1)
    await ledger.write(lambda tx: tx.turns.finish(ended, TurnState.INTERRUPTED, 5, Usage()))
    listed = lambda after, limit: ledger.read(lambda tx: tx.turns.list_running(after=after, limit=limit))  # noqa: E731
    assert [row.turn_id for row in await listed(None, 2)] == ids[:2]
    assert [row.turn_id for row in await listed(ids[1], 10)] == ids[2:]


async def test_one_terminal_state_when_many_finish_at_once(ledger: Ledger) -> None:
    begun = await new_turn(ledger)
    states = [state for state in TurnState if state.terminal]

    async def finish(n: int) -> TurnState:
        await ledger.write(lambda tx: tx.turns.finish(begun.turn_id, states[n], 5, Usage()))
        return states[n]

    results = await in_parallel(len(states), finish)
    (winner,) = [result for result in results if isinstance(result, TurnState)]
    assert sum(isinstance(result, TurnNotRunning) for result in results) == len(states) - 1
    assert (await ledger.read(lambda tx: tx.turns.get(begun.turn_id))).state is winner


async def test_only_running_turns_begin_and_only_terminal_states_end(ledger: Ledger) -> None:
    begun = await new_turn(ledger)
    with pytest.raises(IllegalTransition):
        await ledger.write(lambda tx: tx.turns.finish(begun.turn_id, TurnState.RUNNING, 5, Usage()))
    with pytest.raises(IllegalTransition):
        await ledger.write(lambda tx: tx.turns.add(turn(begun.session_id, 2, state=TurnState.COMPLETED, ended_at=5)))


@pytest.mark.parametrize(
    "change",
    [
        "state = 'running', ended_at = NULL",
        "state = 'completed'",
        "ended_at = 6",
        "usage = 'abc'",
        "error_code = NULL",
        "error_message = NULL",
    ],
)
async def test_the_database_itself_refuses_a_second_terminal_state(opened: OpenLedger, change: str) -> None:
    begun = await new_turn(opened.ledger)
    finish = lambda tx: tx.turns.finish(begun.turn_id, TurnState.FAILED, 5, Usage(), "code", "message")  # noqa: E731
    await opened.ledger.write(finish)
    before = await opened.ledger.read(lambda tx: tx.turns.get(begun.turn_id))
    assert refused(opened.url, f"UPDATE turns SET {change} WHERE turn_id = '{begun.turn_id}'")
    assert await opened.ledger.read(lambda tx: tx.turns.get(begun.turn_id)) == before
    # What is no part of the terminal state stays free.
    sql(opened.url, f"UPDATE turns SET superseded = true WHERE turn_id = '{begun.turn_id}'")
    assert (await opened.ledger.read(lambda tx: tx.turns.get(begun.turn_id))).superseded


async def test_the_database_itself_refuses_unknown_states(opened: OpenLedger) -> None:
    begun = await new_turn(opened.ledger)
    this = f"WHERE turn_id = '{begun.turn_id}'"
    assert refused(opened.url, f"UPDATE turns SET state = 'paused' {this}")
    assert refused(opened.url, f"UPDATE turns SET state = 'completed' {this}")  # without a time
    assert refused(opened.url, f"UPDATE turns SET ended_at = 5 {this}")
    assert refused(opened.url, f"UPDATE sessions SET status = 'lost' WHERE session_id = '{begun.session_id}'")
