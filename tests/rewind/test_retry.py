"""Retry: the same request as a new turn that names the old one."""

from __future__ import annotations

import pytest

from milepost.domain.errors import IdempotencyMismatch, TurnNotFound, TurnRunning
from milepost.domain.turns import TurnState
from milepost.services.turns import BeginTurn, RetryTurn
from tests.api.stack import Work
from tests.rewind.conftest import Bench


async def test_a_retry_is_a_new_turn_with_the_same_request(bench: Bench) -> None:
    session = await bench.open()
    first = (await bench.turns.begin(BeginTurn(session, "do it", model="other", script=None))).turn
    work = Work(bench.ledger, session, first.turn_id)
    await work.claim()
    await work.end(TurnState.FAILED, "broken")
    dry = await bench.turns.retry(RetryTurn(first.turn_id), dry_run=True)
    assert dry.turn.turn_id == first.turn_id and not dry.created
    again = await bench.turns.retry(RetryTurn(first.turn_id, "mine"))
    assert again.created and again.turn.turn_id == "mine" and again.turn.number == 2
    assert again.turn.request == first.request and again.turn.retry_of == first.turn_id
    assert (await bench.turns.get("mine")).turn == again.turn
    assert (await bench.turns.get(first.turn_id)).turn.state is TurnState.FAILED
    assert await bench.ledger.read(lambda tx: tx.outbox.pending("mine")) is not None
    # Sent again, it is the same turn; as something else, it is refused.
    assert not (await bench.turns.retry(RetryTurn(first.turn_id, "mine"))).created
    with pytest.raises(IdempotencyMismatch):
        await bench.turns.begin(BeginTurn(session, "do it", model="other", turn_id="mine"))


async def test_a_running_turn_and_none(bench: Bench) -> None:
    session = await bench.open()
    running = (await bench.turns.begin(BeginTurn(session, "do it"))).turn
    for dry_run in (True, False):
        with pytest.raises(TurnRunning):
            await bench.turns.retry(RetryTurn(running.turn_id), dry_run=dry_run)
        with pytest.raises(TurnNotFound):
            await bench.turns.retry(RetryTurn("trn_none"), dry_run=dry_run)
