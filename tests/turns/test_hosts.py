"""A turn whose Session's host is gone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from milepost.contracts import activities as contracts
from milepost.contracts.naming import bound_to_host, queue_name, sandbox_queue
from milepost.domain.turns import TurnState
from milepost.ports.ledger import WorkerBeat
from milepost.temporal.versioning import is_newer
from tests.support.temporal import Stack
from tests.turns.test_turns import call, script
from workers.process import WorkerProcess, split_queues
from workers.runtime import WorkerSettings
from workflows import calls


async def test_a_call_for_a_host_that_does_not_come_back_ends_the_turn(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workflow code that turns share is imported once and has its own name for it.
    for module in (contracts, calls):
        monkeypatch.setattr(module, "HOST_SCHEDULE_TO_START", timedelta(seconds=0.5))
    end_calls = replace(contracts.END_CALLS, schedule_to_start=timedelta(seconds=0.5))
    monkeypatch.setattr(contracts, "END_CALLS", end_calls)
    ledger, now = stack.parts.ledger, stack.parts.clock.now()
    gone = WorkerBeat("gone/1/x", "gone", (sandbox_queue("gone"),), now)
    await ledger.write(lambda tx: tx.workers.beat(gone))
    queues = split_queues("here", ["turns", "models"])
    process = WorkerProcess(stack.parts, stack.client, stack.starter, queues, WorkerSettings(), reconcile_seconds=0.5)
    await process.start()
    try:
        session = await stack.open(tmp_path)
        begun = await stack.send(session, script=script({"calls": [call("bash", command="true")]}, {"text": "done"}))
        turn = await stack.ended(begun.turn.turn_id)
    finally:
        await process.stop()
    assert (turn.state, turn.error_code) == (TurnState.FAILED, "worker_lost")
    assert "host that has the Session's container" in (turn.error_message or "")


def test_only_queues_of_a_host_are_bound_to_one() -> None:
    assert bound_to_host(queue_name("i", sandbox_queue("h")))
    assert not bound_to_host(queue_name("i", "turns"))
    assert not bound_to_host(queue_name("sandbox.x", "models"))


@pytest.mark.parametrize(
    ("release", "than", "newer"),
    [
        ("0.2.0", "0.1.9", True),
        ("0.10", "0.9", True),
        ("1.0", "1", False),
        ("1.0.1", "1.0", True),
        ("0.1.0", "0.1.0", False),
        ("0.1.0", "0.2.0", False),
        ("dev", "0.1.0", False),
        ("1.0", "dev", False),
    ],
)
def test_releases_are_compared_by_their_numbers(release: str, than: str, newer: bool) -> None:
    assert is_newer(release, than) is newer
