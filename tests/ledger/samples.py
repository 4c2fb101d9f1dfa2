"""Values for the ledger's tests, with text that breaks careless storage."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
from sqlalchemy import Connection

from milepost.domain.content import BlobRef, Content
from milepost.domain.effects import EffectClass, EffectSpec
from milepost.domain.events import StreamKind, TurnBegun
from milepost.domain.sessions import Session, SessionMode, SessionStatus, Workspace
from milepost.domain.turns import Turn, TurnOptions, TurnRequest, TurnState
from milepost.domain.usage import Usage
from milepost.ledger.chain import GENESIS, StoredEvent, event_hash
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.storage.transaction import Transaction
from tests.support.postgres_server import run_apart

T = TypeVar("T")

NASTY = "NUL \0, lone \ud800 and \udfff, \U0001f9ed\u200d\u2620\ufe0f, \u2028, \r\n, e\u0301, \ufffe, '\"\\;--"
"""What text columns of one database or the other refuse or change."""


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid4().hex}"


def session(workspace: Workspace, **changes: Any) -> Session:
    values: dict[str, Any] = {
        "session_id": new_id("ses"),
        "workspace": workspace,
        "title": NASTY,
        "mode": SessionMode.SINGLE,
        "status": SessionStatus.ACTIVE,
        "agents": ("default", "zweite"),
        "image": None,
        "created_at": 1_000_000,
        "closed_at": None,
    }
    return Session(**{**values, **changes})


def turn(session_id: str, number: int = 1, **changes: Any) -> Turn:
    turn_id = str(changes.pop("turn_id", new_id("turn")))
    values: dict[str, Any] = {
        "turn_id": turn_id,
        "session_id": session_id,
        "number": number,
        "state": TurnState.RUNNING,
        "request": TurnRequest(
            Content(NASTY), TurnOptions(agent="a", script=Content("x", BlobRef("0" * 64, 9, "t/p")))
        ),
        "content_digest": "d" * 64,
        "idempotency_key": None,
        "workflow_id": f"inst/turn/{turn_id}",
        "claimed_run": None,
        "generation": 1,
        "created_at": 2_000_000,
        "dispatched_at": None,
        "stop_requested_at": None,
        "ended_at": None,
        "error_code": None,
        "error_message": None,
        "usage": Usage(),
        "superseded": False,
    }
    return Turn(**{**values, **changes})


def as_in_0001(stored: Sequence[StoredEvent]) -> list[dict[str, Any]]:
    """Rows of the table of events as the first schema had it, for events from the beginning of one stream."""
    rows: list[dict[str, Any]] = []
    for item in stored:
        prev = rows[-1]["hash"] if rows else GENESIS
        header = (item.stream_id, item.seq, item.key, item.type, item.version, item.at, item.turn_id, item.payload)
        names = ("stream_id", "seq", "event_key", "type", "version", "at", "turn_id", "payload")
        row = dict(zip(names, header, strict=True))
        rows.append({**row, "prev_hash": prev, "hash": event_hash(prev, *header)})
    return rows


def spec(turn: Turn, **changes: Any) -> EffectSpec:
    values: dict[str, Any] = {
        "effect_id": uuid4().hex,
        "idempotency_key": uuid4().hex,
        "session_id": turn.session_id,
        "turn_id": turn.turn_id,
        "generation": 1,
        "agent": "default",
        "position": "1/0",
        "operation": "tool:bash",
        "effect_class": EffectClass.ATTACHABLE,
        "input_digest": "e" * 64,
        "call_id": NASTY,
        "arguments": Content(NASTY),
    }
    return EffectSpec(**{**values, **changes})


def begun(turn: Turn) -> NewEvent:
    event = TurnBegun(turn.turn_id, turn.number, turn.request, turn.workflow_id)
    return NewEvent(f"turn.begun/{turn.turn_id}", event, turn.turn_id)


def add_session(tx: LedgerTx, **changes: Any) -> Session:
    """A Session in a Workspace of its own."""
    path = f"/tmp/{uuid4().hex}"
    new = session(tx.sessions.workspace(path, Workspace(new_id("ws"), path, 1)), **changes)
    tx.sessions.add(new)
    return new


async def new_turn(ledger: Ledger, **changes: Any) -> Turn:
    """A running first turn of a Session of its own, begun as the product begins one."""

    def body(tx: LedgerTx) -> Turn:
        new = turn(add_session(tx).session_id, **changes)
        tx.turns.add(new)
        tx.events.append(new.session_id, StreamKind.SESSION, [begun(new)], new.created_at)
        return new

    return await ledger.write(body)


def connection(tx: LedgerTx) -> Connection:
    """The connection under a transaction, for what a test has to do past the port."""
    assert isinstance(tx, Transaction)
    return tx.connection


def sql(url: str, *statements: str) -> list[Any]:
    """Run statements with a bare driver, past every line of the product; return the last one's rows."""
    if url.startswith("sqlite:///"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as conn:
            for statement in statements:
                rows = conn.execute(statement).fetchall()
        conn.close()
        return rows

    async def run() -> list[Any]:
        conn = await asyncpg.connect(url, timeout=10)
        try:
            for statement in statements:
                found = await conn.fetch(statement)
            return [tuple(row) for row in found]
        finally:
            await conn.close()

    return list(run_apart(run()))


def refused(url: str, statement: str) -> bool:
    """Whether the bare database refuses a statement."""
    try:
        sql(url, statement)
    except (sqlite3.IntegrityError, asyncpg.IntegrityConstraintViolationError):
        return True
    return False


async def in_parallel(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run `work(0..count-1)` at once; return results and exceptions in order."""
    return await asyncio.gather(*(work(n) for n in range(count)), return_exceptions=True)
