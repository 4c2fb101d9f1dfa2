"""A page of History costs the same, however long the Session is."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, select, text

from milepost.domain.content import Content
from milepost.domain.events import AgentOutput, AgentStarted, TurnBegun
from milepost.domain.messages import Sampling
from milepost.domain.turns import TurnRequest
from milepost.domain.usage import Usage
from milepost.ledger.codec import encode
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.history import _page
from milepost.storage.bodies import body
from milepost.storage.events import key_digest
from milepost.storage.tables import events, identifiers, streams, turns
from tests.ledger.samples import add_session, connection

SHORT, LONG, PAGE = 100, 10_000, 50


def _long_session(tx: LedgerTx, count: int) -> str:
    """A Session of `count` turns, written past the port: only reading is at question."""
    session_id = add_session(tx).session_id
    conn = connection(tx)
    conn.execute(insert(streams), {"stream_id": session_id, "kind": "session", "head_seq": 3 * count, "head_hash": b""})
    ids = [session_id, *(_turn_id(session_id, number) for number in range(1, count + 1))]
    conn.execute(insert(identifiers), [{"name": name} for name in ids])
    named = select(identifiers.c.name, identifiers.c.number)
    numbers = {row.name: row.number for row in conn.execute(named)}
    request = TurnRequest(Content("please"))
    turn_rows: list[dict[str, Any]] = []
    event_rows: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        turn_id = _turn_id(session_id, number)
        ends = {"ended_at": number + 1, "usage": encode(Usage()), "superseded": False}
        made = {"request": encode(request), "content_digest": "d", "workflow_id": turn_id, "generation": 0}
        row = {"turn_id": turn_id, "session_id": session_id, "number": number, "state": "completed"}
        turn_rows.append({**row, **made, **ends, "created_at": number})
        work = (
            TurnBegun(turn_id, number, request, turn_id),
            AgentStarted(turn_id, "a", "p", "m", "", (), Sampling(), 1),
            AgentOutput(turn_id, "a", Content("answer"), 1, Usage()),
        )
        for place, new in enumerate(work):
            key = f"{number}/{place}"
            header = {"seq": 3 * number - 2 + place, "key_digest": key_digest(key), "pieces": 0, "hash": b""}
            named = {"stream": numbers[session_id], "turn": numbers[turn_id], "body": body(key, encode(new), turn_id)}
            event_rows.append({**header, **named, "type": new.TYPE, "version": 1, "at": number})
    conn.execute(insert(turns), turn_rows)
    conn.execute(insert(events), event_rows)
    return session_id


def _turn_id(session_id: str, number: int) -> str:
    return f"trn_{session_id[-8:]}_{number:06d}"


def _work(conn: Connection, read: Any) -> tuple[int, int]:
    """(statements, effort) of a read: rows that PostgreSQL's scans fetched, or steps of SQLite's machine."""
    statements: list[str] = []

    def sent(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(conn.engine, "before_cursor_execute", sent)
    try:
        if conn.dialect.name == "sqlite":
            steps = [0]

            def step() -> int:
                steps[0] += 1
                return 0

            driver: Any = conn.connection.driver_connection
            driver.set_progress_handler(step, 1)
            read()
            driver.set_progress_handler(None, 1)
            return len(statements), steps[0]
        before = _fetched(conn)
        seen = len(statements)
        read()
        sent_by_read = len(statements) - seen
        return sent_by_read, _fetched(conn) - before
    finally:
        event.remove(conn.engine, "before_cursor_execute", sent)


def _fetched(conn: Connection) -> int:
    query = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables"
    return int(conn.execute(text(query)).scalar() or 0)


async def test_50_turns_read_as_much_of_10000_as_of_100(sqlite_ledger: Ledger) -> None:
    await _compare(sqlite_ledger)


@pytest.mark.slow
@pytest.mark.postgres
async def test_50_turns_read_as_much_of_10000_as_of_100_on_postgresql(postgres_ledger: Ledger) -> None:
    await _compare(postgres_ledger)


async def _compare(ledger: Ledger) -> None:
    def fill(tx: LedgerTx) -> tuple[str, str]:
        made = _long_session(tx, SHORT), _long_session(tx, LONG)
        if connection(tx).dialect.name == "postgresql":
            connection(tx).execute(text("ANALYZE"))
        return made

    short, long = await ledger.write(fill)

    def measure(tx: LedgerTx, session_id: str, before: int | None) -> tuple[int, int]:
        def page() -> None:
            assert len(_page(tx, session_id, before=before, limit=PAGE, superseded=False).entries) == PAGE

        page()  # what is prepared once does not count
        return _work(connection(tx), page)

    def read(tx: LedgerTx) -> None:
        for before_short, before_long in ((None, None), (60, 60), (60, 5_000)):
            statements, effort = measure(tx, long, before_long)
            few, little = measure(tx, short, before_short)
            assert statements == few < 20
            # How a small table is read best makes a few; the long Session has 30,000 events more.
            assert abs(effort - little) <= PAGE, (effort, little)
            assert effort > PAGE

    await ledger.read(read)
