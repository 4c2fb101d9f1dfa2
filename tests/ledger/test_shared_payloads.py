"""What an agent is made of is kept once, and read in every turn as it was recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from milepost.domain.events import AgentStarted, StreamKind
from milepost.domain.messages import Sampling
from milepost.domain.turns import TurnState
from milepost.ledger.chain import verify_chain
from milepost.ledger.codec import decode_event, encode
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.services.contents import Contents
from milepost.services.verification import VerificationService
from milepost.storage import FileBlobStore
from tests.ledger.samples import NASTY, add_session, begun, refused, sql, turn
from tests.support.databases import OpenLedger


def _start(turn_id: str, prompt: str = NASTY) -> AgentStarted:
    return AgentStarted(turn_id, "a", "p", "m", prompt, (), Sampling(temperature=0.1), 4)


async def _turns(ledger: Ledger, prompts: list[str]) -> tuple[str, list[AgentStarted]]:
    """A Session with a turn for each prompt."""
    session = await ledger.write(lambda tx: add_session(tx).session_id)
    starts = []
    for number, prompt in enumerate(prompts, start=1):
        row = turn(session, number)
        start = _start(row.turn_id, prompt)
        starts.append(start)

        def body(tx: LedgerTx, row=row, start=start) -> None:  # type: ignore[no-untyped-def]
            tx.turns.add(row)
            new = [begun(row), NewEvent(f"{row.turn_id}/a/started", start, row.turn_id)]
            tx.events.append(session, StreamKind.SESSION, new, 5)
            tx.turns.finish(row.turn_id, TurnState.COMPLETED, 6, row.usage, None, None)

        await ledger.write(body)
    return session, starts


async def test_every_reader_gets_the_bytes_that_were_appended(opened: OpenLedger) -> None:
    ledger = opened.ledger
    session, starts = await _turns(ledger, [NASTY, NASTY, "another prompt", NASTY])
    stored = await ledger.read(lambda tx: tx.events.read(session))
    verify_chain(stored)
    payloads = [item.payload for item in stored if item.type == AgentStarted.TYPE]
    assert payloads == [encode(start) for start in starts]
    ids = [start.turn_id for start in starts]
    types = (AgentStarted.TYPE,)
    assert [
        item.payload for item in await ledger.read(lambda tx: tx.events.read_turns(session, ids, types=types))
    ] == payloads
    for start, payload in zip(starts, payloads, strict=True):
        found = await ledger.read(lambda tx, s=start: tx.events.find(session, f"{s.turn_id}/a/started"))  # type: ignore[misc]
        (of_turn,) = await ledger.read(lambda tx, s=start: tx.events.read_turn(session, s.turn_id, types=types))  # type: ignore[misc]
        assert found == of_turn and found is not None and found.payload == payload
        assert decode_event(found.type, found.version, found.payload) == start
    kept = sql(opened.url, f"SELECT pieces, length(body) FROM events WHERE type = '{AgentStarted.TYPE}'")
    assert all(pieces == 0 and size < 200 for pieces, size in kept)
    assert sql(opened.url, "SELECT count(*) FROM shared_payloads") == [(2,)]


async def test_transactions_at_once_keep_a_payload_once(opened: OpenLedger) -> None:
    found = await asyncio.gather(*(_turns(opened.ledger, ["same", f"own {number}"]) for number in range(8)))
    assert sql(opened.url, "SELECT count(*) FROM shared_payloads") == [(9,)]
    for session, _ in found:
        verify_chain(await opened.ledger.read(lambda tx, s=session: tx.events.read(s)))  # type: ignore[misc]


async def test_shared_payloads_cannot_be_changed(opened: OpenLedger) -> None:
    await _turns(opened.ledger, ["one"])
    assert refused(opened.url, "UPDATE shared_payloads SET digest = 'other'")
    assert refused(opened.url, "DELETE FROM shared_payloads")
    if opened.url.startswith("postgresql"):
        assert refused(opened.url, "TRUNCATE shared_payloads")


@pytest.mark.parametrize("tampering", ["UPDATE shared_payloads SET data = 'x'", "DELETE FROM shared_payloads"])
async def test_a_shared_payload_that_was_tampered_with_is_found(
    opened: OpenLedger, tampering: str, tmp_path: Path
) -> None:
    session, _ = await _turns(opened.ledger, ["one"])
    if opened.url.startswith("sqlite"):
        unlock = ["DROP TRIGGER shared_payloads_no_update", "DROP TRIGGER shared_payloads_no_delete"]
        tampering = tampering.replace("'x'", "X'78'")
    else:
        unlock = ["ALTER TABLE shared_payloads DISABLE TRIGGER USER"]
    sql(opened.url, *unlock, tampering)
    found = await VerificationService(opened.ledger, Contents(FileBlobStore(tmp_path))).verify()
    assert [(finding.stream_id, "hash of seq" in finding.problem) for finding in found.findings] == [(session, True)]
