"""What only PostgreSQL can do to a transaction: deadlock, lost connections, a restart."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import asyncpg
import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import make_url

from milepost.domain.errors import CommitUnknown, StorageUnavailable, TurnNotRunning
from milepost.domain.events import RunStarted, StreamKind, ToolStarted, TurnCompleted
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.storage import Hub, open_ledger, schema_state, upgrade
from tests.ledger.samples import connection, in_parallel, new_turn, sql
from tests.support.postgres_server import PostgresServer, run_apart

pytestmark = pytest.mark.postgres


def _append(tx: LedgerTx, key: str, stream: str = "run_1") -> list[int]:
    return tx.events.append(stream, StreamKind.RUN, [NewEvent(key, RunStarted("r", "a", {}))], 1)


async def _keys(ledger: Ledger, stream: str = "run_1") -> list[str]:
    return [event.key for event in await ledger.read(lambda tx: tx.events.read(stream))]


async def test_a_deadlock_is_resolved_by_running_again(postgres_ledger: Ledger) -> None:
    for stream in ("run_a", "run_b"):
        await postgres_ledger.write(lambda tx, stream=stream: _append(tx, "first", stream))
    runs = 0

    async def write(n: int) -> None:
        def body(tx: LedgerTx) -> None:
            nonlocal runs
            runs += 1
            _append(tx, f"k{n}", "run_a" if n % 2 else "run_b")
            connection(tx).execute(text("SELECT pg_sleep(0.1)"))
            _append(tx, f"k{n}", "run_b" if n % 2 else "run_a")

        await postgres_ledger.write(body)

    assert await in_parallel(2, write) == [None, None]
    assert runs == 3
    assert set(await _keys(postgres_ledger, "run_a")) == {"first", "k0", "k1"}


async def test_a_stream_that_appears_meanwhile_is_locked_all_the_same(
    postgres_ledger: Ledger, postgres_url: str
) -> None:
    """Another process makes the stream just after this one looked for it."""
    probes: list[bool] = []

    async def append_elsewhere() -> None:
        other = await open_ledger(postgres_url, Hub())
        await other.write(lambda tx: _append(tx, "other"))
        await other.close()

    def hook(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if "FOR NO KEY UPDATE" in statement and not probes:
            probes.append(True)
            run_apart(append_elsewhere())
        if statement.startswith("INSERT INTO events"):
            try:
                sql(postgres_url, "SELECT 1 FROM streams FOR NO KEY UPDATE NOWAIT")
            except asyncpg.LockNotAvailableError:
                probes.append(True)

    def body(tx: LedgerTx) -> list[int]:
        event.listen(connection(tx), "after_cursor_execute", hook)
        return _append(tx, "mine")

    assert await postgres_ledger.write(body) == [2]
    assert probes == [True, True]  # the stream was made in between, and was locked while this one wrote


async def test_who_waited_for_a_stream_sees_what_was_appended_meanwhile(postgres_ledger: Ledger) -> None:
    turn = await new_turn(postgres_ledger)
    stream = turn.session_id
    started = NewEvent("same", ToolStarted(turn.turn_id, "a", "e", 1, 1, 0, "c", "bash"), turn.turn_id)
    own = NewEvent("own", started.event, turn.turn_id)
    completed = NewEvent("end", TurnCompleted(turn.turn_id, Usage()), turn.turn_id)

    async def slow(*events: NewEvent, finish: bool) -> list[int]:
        def body(tx: LedgerTx) -> list[int]:
            seqs = tx.events.append(stream, StreamKind.SESSION, events, 5)
            if finish:
                tx.turns.finish(turn.turn_id, TurnState.COMPLETED, 5, Usage())
            connection(tx).execute(text("SELECT pg_sleep(0.3)"))
            return seqs

        return await postgres_ledger.write(body)

    async def late(*events: NewEvent) -> list[int]:
        await asyncio.sleep(0.1)
        return await postgres_ledger.write(lambda tx: tx.events.append(stream, StreamKind.SESSION, events, 5))

    assert await asyncio.gather(slow(started, finish=False), late(started, own)) == [[2], [2, 3]]
    first, second = await asyncio.gather(
        slow(completed, finish=True), late(NewEvent("late", started.event, turn.turn_id)), return_exceptions=True
    )
    assert first == [4]
    assert isinstance(second, TurnNotRunning)


async def test_a_connection_lost_before_the_commit_is_no_error(postgres_ledger: Ledger) -> None:
    runs: list[int] = []

    def body(tx: LedgerTx) -> list[int]:
        runs.append(1)
        seqs = _append(tx, "k")
        if len(runs) == 1:
            connection(tx).execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return seqs

    assert await postgres_ledger.write(body) == [1]
    assert len(runs) == 2
    assert await _keys(postgres_ledger) == ["k"]


async def test_a_connection_that_is_always_lost_is_unavailable(postgres_ledger: Ledger) -> None:
    def body(tx: LedgerTx) -> None:
        _append(tx, "k")
        connection(tx).execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(StorageUnavailable):
        await postgres_ledger.write(body)
    assert await _keys(postgres_ledger) == []


async def test_a_connection_lost_at_the_commit_is_not_called_a_failure(
    postgres_ledger: Ledger, postgres_url: str
) -> None:
    sql(
        postgres_url,
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON leases DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION die()",
    )
    runs: list[int] = []

    def body(tx: LedgerTx) -> None:
        runs.append(1)
        tx.leases.acquire("a", "b", 1, 1)

    with pytest.raises(CommitUnknown) as error:
        await postgres_ledger.write(body)
    assert error.value.retryable
    assert len(runs) == 1
    assert await postgres_ledger.write(lambda tx: _append(tx, "after")) == [1]


async def test_a_commit_that_the_server_refuses_changes_nothing(postgres_ledger: Ledger, postgres_url: str) -> None:
    sql(
        postgres_url,
        "CREATE TABLE parents (id int PRIMARY KEY)",
        "CREATE TABLE children (id int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)",
    )

    def body(tx: LedgerTx) -> None:
        _append(tx, "k")
        connection(tx).execute(text("INSERT INTO children VALUES (1)"))

    with pytest.raises(Exception, match="foreign key"):
        await postgres_ledger.write(body)
    assert await _keys(postgres_ledger) == []


async def test_every_pooled_connection_lost_at_once(postgres_ledger: Ledger, postgres_url: str) -> None:
    await in_parallel(16, lambda n: postgres_ledger.write(lambda tx: _append(tx, f"a{n}", f"run_{n}")))
    sql(
        postgres_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    results = await in_parallel(32, lambda n: postgres_ledger.write(lambda tx: _append(tx, f"b{n}", f"run_{n}")))
    assert [result for result in results if isinstance(result, Exception)] == []


async def test_a_stopped_server_is_unavailable_and_a_restarted_one_is_used(postgres_server: PostgresServer) -> None:
    name = postgres_server.create_database("template1")
    url = postgres_server.url(name)
    await upgrade(url)
    ledger = await open_ledger(url, Hub())
    assert await ledger.write(lambda tx: _append(tx, "k0")) == [1]
    postgres_server.stop(signal.SIGQUIT)
    try:
        for use in (ledger.write, ledger.read):
            with pytest.raises(StorageUnavailable) as error:
                await use(lambda tx: tx.events.head("run_1"))
            assert error.value.retryable
            assert error.value.fix
        with pytest.raises(StorageUnavailable):
            await schema_state(url)
    finally:
        postgres_server.start()
    assert await ledger.write(lambda tx: _append(tx, "k1")) == [2]
    assert await _keys(ledger) == ["k0", "k1"]
    await ledger.close()
    postgres_server.drop_database(name)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"database": "nothing_here"}, "3D000"), ({"username": "nobody_here"}, "28000")],
)
async def test_a_wrong_url_is_named_without_its_password(postgres_url: str, change: dict[str, str], code: str) -> None:
    url = make_url(postgres_url).set(password="geheim", **change).render_as_string(hide_password=False)
    with pytest.raises(StorageUnavailable, match=code) as error:
        await open_ledger(url, Hub())
    assert "geheim" not in f"{error.value!r} {error.value}"
