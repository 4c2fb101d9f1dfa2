"""The ledger is the only authority: nothing of a turn is lost when Temporal has forgotten everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from milepost.domain.effects import EffectState
from milepost.domain.turns import Turn, TurnState, TurnStatus
from milepost.ledger.history import HistoryEntry
from milepost.ports.workflows import TurnStart, WorkflowState
from milepost.services.reconcile import Reconciler
from milepost.temporal.client import TemporalAddress
from milepost.temporal.dev_server import DevServer
from tests.histories.scenarios import Step, call, stack_of
from tests.support.temporal import Stack

STEPS = (Step("First.", (call("bash", command="make"),)), Step("Done."))


@pytest.fixture
async def forgetful_address(tmp_path: Path) -> AsyncIterator[TemporalAddress]:
    """A Temporal that has never heard of any turn."""
    server = DevServer(None, tmp_path / "temporal.log")
    yield await server.start()
    await server.stop()


@pytest.fixture
async def past(sqlite_url: str, tmp_path: Path, temporal_address: TemporalAddress) -> tuple[Turn, HistoryEntry]:
    """A turn that was done with another Temporal, with its History entry."""
    async with stack_of(STEPS, sqlite_url, tmp_path / "blobs", temporal_address) as (stack, _):
        session = await stack.open(tmp_path)
        async with stack.worker():
            begun = await stack.send(session, idempotency_key="k")
            turn = await stack.ended(begun.turn.turn_id)
        return turn, await stack.history.entry(turn.turn_id)


@pytest.fixture
async def stack(
    past: object, sqlite_url: str, tmp_path: Path, forgetful_address: TemporalAddress
) -> AsyncIterator[Stack]:
    """A stack over the ledger of `past` and a Temporal without one."""
    async with stack_of(STEPS, sqlite_url, tmp_path / "blobs", forgetful_address) as (stack, _):
        yield stack


async def test_history_and_the_next_turn_need_nothing_of_temporals_past(
    past: tuple[Turn, HistoryEntry], stack: Stack
) -> None:
    turn, entry = past
    assert await stack.starter.state(turn.workflow_id) is WorkflowState.NOT_FOUND
    async with stack.worker():
        assert await Reconciler(stack.parts.ledger, stack.starter, stack.parts.clock, "other").run_once() == 0
        assert await stack.history.entry(turn.turn_id) == entry
        assert (await stack.turns.get(turn.turn_id)).status is TurnStatus.ENDED
        again = await stack.send(turn.session_id, idempotency_key="k")
        assert again.turn == turn and not again.created
        follow = await stack.send(turn.session_id, "go on")
        assert (await stack.ended(follow.turn.turn_id)).state is TurnState.COMPLETED


async def test_a_forgotten_workflow_that_is_started_again_does_not_do_the_turn_again(
    past: tuple[Turn, HistoryEntry], stack: Stack
) -> None:
    """Rejecting a known workflow id holds only while Temporal remembers it; the claim in the ledger holds for ever."""
    turn, entry = past
    async with stack.worker():
        await stack.starter.start_turn(TurnStart(turn.workflow_id, turn.turn_id, turn.session_id, "again", ""))
        async with asyncio.timeout(30):
            while await stack.starter.state(turn.workflow_id) is not WorkflowState.FAILED:
                await asyncio.sleep(0.05)
    assert (await stack.turns.get(turn.turn_id)).turn == turn
    assert await stack.history.entry(turn.turn_id) == entry


async def test_a_running_turn_that_temporal_has_lost_is_interrupted_and_the_next_one_runs(
    sqlite_url: str, tmp_path: Path, temporal_address: TemporalAddress, forgetful_address: TemporalAddress
) -> None:
    hanging = (Step("Before the loss.", (call("bash", command="hang on"),)),)
    async with stack_of(hanging, sqlite_url, tmp_path / "blobs", temporal_address) as (stack, sandboxes):
        session = await stack.open(tmp_path)
        async with stack.worker():
            turn = (await stack.send(session)).turn
            async with asyncio.timeout(30):
                while session not in sandboxes.by_session or not sandboxes.by_session[session].commands():
                    await asyncio.sleep(0.02)
    async with stack_of((Step("After."),), sqlite_url, tmp_path / "blobs", forgetful_address) as (stack, _):
        async with stack.worker():
            lost = await stack.ended(turn.turn_id)
            follow = await stack.send(session, "go on")
            assert (await stack.ended(follow.turn.turn_id)).state is TurnState.COMPLETED
        assert lost.state is TurnState.INTERRUPTED and "not found" in (lost.error_message or "")
        entry = await stack.history.entry(turn.turn_id)
        assert entry.output.text == "Before the loss." and entry.agents[0].partial
        (card,) = entry.tools
        assert card.is_error and card.state is EffectState.UNCERTAIN
