"""A ledger of an earlier schema is upgraded with everything it holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection

from milepost.domain.errors import SchemaOutdated
from milepost.domain.events import AgentStarted, StreamKind
from milepost.domain.messages import Sampling
from milepost.ledger.chain import verify_chain
from milepost.ledger.codec import decode_event, encode, parse
from milepost.ports.ledger import OutboxKind
from milepost.storage import Hub, SchemaStatus, open_ledger, schema_state, upgrade
from milepost.storage.search import SqlSearchIndex
from milepost.storage.transaction import Transaction
from milepost.storage.upgrading import alembic_config
from tests.ledger.samples import add_session, begun, refused, spec, turn
from tests.ledger.test_schema import _on, empty_url

__all__ = ["empty_url"]


async def test_from_0001(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if empty_url.startswith("sqlite"):
        Path(empty_url.removeprefix("sqlite:///")).parent.mkdir(parents=True)
    kept = turn("later")
    effect = spec(kept)

    def old(conn: Connection) -> str:
        command.upgrade(alembic_config(conn), "0001")
        tx = Transaction(conn)
        session = add_session(tx).session_id
        kept_here = turn(session, turn_id=kept.turn_id)
        tx.turns.add(kept_here)
        tx.events.append(session, StreamKind.SESSION, [begun(kept_here)], 1)
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
        verify_chain(await ledger.read(lambda tx: tx.events.read(session)))
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
