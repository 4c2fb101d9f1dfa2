"""A ledger of an earlier schema is upgraded with everything it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, column, insert, table

from milepost.domain.errors import SchemaOutdated
from milepost.domain.events import AgentStarted, RunStarted
from milepost.domain.messages import Sampling
from milepost.ledger.chain import StoredEvent, verify_chain
from milepost.ledger.codec import decode_event, encode, parse
from milepost.ports.ledger import OutboxKind
from milepost.storage import Hub, SchemaStatus, open_ledger, schema_state, upgrade
from milepost.storage.search import SqlSearchIndex
from milepost.storage.tables import streams
from milepost.storage.transaction import Transaction
from milepost.storage.upgrading import alembic_config
from tests.ledger.samples import NASTY, add_session, as_in_0001, begun, refused, spec, turn
from tests.ledger.test_schema import _on, empty_url

__all__ = ["empty_url"]


async def test_from_0001(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if empty_url.startswith("sqlite"):
        Path(empty_url.removeprefix("sqlite:///")).parent.mkdir(parents=True)
    kept = turn("later")
    effect = spec(kept)
    read: list[StoredEvent] = []

    def old(conn: Connection) -> str:
        command.upgrade(alembic_config(conn), "0001")
        tx = Transaction(conn)
        session = add_session(tx).session_id
        kept_here = turn(session, turn_id=kept.turn_id)
        tx.turns.add(kept_here)
        events = [
            (f"{kept_here.turn_id}/begun", begun(kept_here).event, kept_here.turn_id),
            ("long", RunStarted(session, "a", {"long": NASTY * 400}), None),
        ]
        stored = [
            StoredEvent(session, seq, key, event.TYPE, 1, seq, turn_id, encode(event), b"")
            for seq, (key, event, turn_id) in enumerate(events, start=1)
        ]
        rows = as_in_0001(stored)
        head = {"stream_id": session, "kind": "session", "head_seq": len(rows), "head_hash": rows[-1]["hash"]}
        conn.execute(insert(streams), head)
        conn.execute(insert(table("events", *(column(name) for name in rows[0]))), rows)
        read.extend(replace(item, hash=row["hash"]) for item, row in zip(stored, rows, strict=True))
        tx.effects.dispatch(spec(kept_here, effect_id=effect.effect_id), 2, "worker")
        tx.outbox.add(OutboxKind.START_TURN, kept.turn_id, 3)
        tx.outbox.add(OutboxKind.CANCEL_TURN, "another", 4)
        tx.outbox.lease("dispatcher", 5, 10, 1)
        tx.outbox.retry(f"start_turn:{kept.turn_id}", 99, "Temporal was down")
        tx.outbox.delivered("cancel_turn:another", 6)
        return session

    with monkeypatch.context() as patch:
        patch.setattr(SqlSearchIndex, "add", lambda *_: None)  # that release had no search
        session = _on(empty_url, old)
    assert (await schema_state(empty_url)).status is SchemaStatus.OUTDATED
    with pytest.raises(SchemaOutdated, match="schema 0001"):
        await open_ledger(empty_url, Hub())
    assert (await upgrade(empty_url)).status is SchemaStatus.CURRENT
    ledger = await open_ledger(empty_url, Hub())
    try:
        assert (await ledger.read(lambda tx: tx.turns.get(kept.turn_id))).session_id == session
        found_events = await ledger.read(lambda tx: tx.events.read(session))
        assert found_events == read
        assert verify_chain(found_events) == await ledger.read(lambda tx: tx.events.head(session))
        assert await ledger.read(lambda tx: tx.events.find(session, "long")) == read[1]
        assert await ledger.read(lambda tx: tx.events.read_turn(session, kept.turn_id)) == read[:1]
        found = await ledger.read(lambda tx: tx.effects.get(effect.effect_id))
        assert found is not None and (found.attempt, found.worker) == (1, "worker")
        waiting = await ledger.read(lambda tx: tx.outbox.pending(kept.turn_id))
        assert waiting is not None
        assert (waiting.attempts, waiting.created_at, waiting.last_error) == (1, 3, "Temporal was down")
        assert await ledger.read(lambda tx: tx.outbox.pending("another")) is None
        await ledger.write(lambda tx: tx.outbox.add(OutboxKind.ANSWER_APPROVAL, "apr_1", 7))
        leased = await ledger.write(lambda tx: tx.outbox.lease("dispatcher", 100, 10, 9))
        assert [item.kind for item in leased] == [OutboxKind.START_TURN, OutboxKind.ANSWER_APPROVAL]
    finally:
        await ledger.close()
    assert refused(empty_url, "UPDATE outbox SET kind = 'nothing'")
    assert refused(empty_url, "UPDATE events SET at = 0")


def test_an_agents_start_of_before_there_were_approvals() -> None:
    event = AgentStarted("t", "a", "p", "m", "", (), Sampling(), 4)
    payload = parse(encode(event))
    for name in ("approvals", "approval_seconds"):
        del payload[name]
    assert decode_event(AgentStarted.TYPE, 1, encode(payload)) == event
