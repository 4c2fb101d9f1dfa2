"""Calls side by side pass a limit by what one of them uses beyond its reservation, and no more; also across a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities import admission
from milepost.contracts.activities import ModelOutcome
from milepost.domain.agents import AgentConfig
from milepost.domain.budgets import Budget, Excess, Limits, Reservation, Spending
from milepost.domain.messages import Sampling
from milepost.domain.usage import Usage
from milepost.engine import budgets as rules
from milepost.ports.models import ModelRequest
from tests.context.plays import Model
from tests.support.databases import OpenLedger
from tests.support.driven import AGENT, Driver

LIMIT = 60_000
LONG = "word " * 24_000
"""Nothing bounds an answer: this one has about 30,000 tokens, seven times what is reserved for it."""
ONE_CALL = 30_500


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 900), st.floats(0, 1)), min_size=1, max_size=12),
    st.integers(0, 3_000),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_whatever_is_used_the_limit_is_passed_by_one_excess_at_most(calls, limit, chosen) -> None:  # type: ignore[no-untyped-def]
    """A machine of the rules: calls come in any order, are let in or not, and use up to their most."""
    limits, state = Limits(tokens=limit), Spending()
    under_way: list[tuple[int, int, float]] = []
    largest = 0
    for reserved, excess, share in calls:
        if rules.breach("session/s", limits, state, reserved, None) is None and not rules.crowded(
            limits, state, Excess(excess), [Excess(other) for _, other, _ in under_way], reserved, Decimal(0)
        ):
            state = rules.with_reserved(state, reserved, None)
            under_way.append((reserved, excess, share))
            largest = max(largest, excess)
        while under_way and chosen.random() < 0.4:
            state = _ended(state, under_way.pop(chosen.randrange(len(under_way))))
    for call in under_way:
        state = _ended(state, call)
    assert state.tokens <= limit + largest


def _ended(state: Spending, call: tuple[int, int, float]) -> Spending:
    reserved, excess, share = call
    held = Reservation("e", 1, "s", "t", "a", ("session/s",), reserved, None)
    return rules.with_settled(state, held, Usage(int((reserved + excess) * share)), 0)


def test_a_call_alone_may_always_be_made() -> None:
    limits = Limits(tokens=100, cost=Decimal(1))
    assert not rules.crowded(limits, Spending(), Excess(10**9, Decimal(10**12)), [], 100, Decimal(1_000_000))


class Side:
    """Two Sessions of one agent, whose calls are under way at the same time."""

    def __init__(self, opened: OpenLedger, folder: Path, model: Model, output: int | None) -> None:
        agent = AgentConfig(
            AGENT,
            "instant",
            "instant",
            sampling=Sampling(max_tokens=output),
            budget=Budget(agent=Limits(tokens=LIMIT)),
        )
        self.driver = Driver(
            opened.ledger,  # type: ignore[arg-type]
            opened.notifier,
            folder,
            lambda: 100,
            agent=agent,
            gateway=model,
        )
        self._ledger = opened.ledger

    async def begun(self) -> tuple[str, str]:
        session = await self.driver.open()
        return session, await self.driver.send(session, "Write as much as you can.")

    async def used(self) -> Spending:
        return await self._ledger.read(lambda tx: tx.budgets.spending(f"agent/{AGENT}/total"))


def talkative(gate: Callable[[], object] | None = None) -> tuple[Model, list[int]]:
    """A model that writes far more than is reserved; how many of its calls were under way together."""
    running: list[int] = [0, 0]

    async def waits(request: ModelRequest) -> None:
        running[0] += 1
        running[1] = max(running)
        await asyncio.sleep(0.3)
        running[0] -= 1
        if gate is not None:
            gate()

    return Model(lambda _: (LONG, []), waits=waits), running


async def test_two_agents_at_the_same_time(opened: OpenLedger, tmp_path: Path) -> None:
    """Without a bound of the answer the second waits for the first, and then there is nothing left for it."""
    model, running = talkative()
    side = Side(opened, tmp_path, model, None)
    calls = [await side.begun() for _ in range(4)]
    results = await asyncio.gather(*(side.driver.call_model(session, turn, 1) for session, turn in calls))
    used = await side.used()
    assert running[1] == 1, "none beside another"
    assert LIMIT < used.tokens <= LIMIT + ONE_CALL and used.reserved_tokens == 0
    assert [result.outcome for result in results].count(ModelOutcome.FAILED) >= 1
    assert {result.error_code for result in results if result.outcome is ModelOutcome.FAILED} == {"budget_exceeded"}


async def test_bounded_answers_go_side_by_side(opened: OpenLedger, tmp_path: Path) -> None:
    model, running = talkative()
    side = Side(opened, tmp_path, model, 200)
    calls = [await side.begun() for _ in range(2)]
    await asyncio.gather(*(side.driver.call_model(session, turn, 1) for session, turn in calls))
    assert running[1] == 2


async def test_a_kill_of_both_neither_blocks_them_nor_opens_the_limit(opened: OpenLedger, tmp_path: Path) -> None:
    """What the lost attempts held counts until they are made again; nobody waits for the other for ever."""
    lost = [True]

    def gate() -> None:
        if lost[0]:
            raise asyncio.CancelledError

    model, running = talkative(gate)
    side = Side(opened, tmp_path, model, None)
    first, second = await side.begun(), await side.begun()
    with pytest.raises(asyncio.CancelledError):
        await side.driver.call_model(*first, 1)
    held = await side.used()
    assert held.reserved_tokens > 0, "the row outlives the worker"
    waiting = asyncio.ensure_future(side.driver.call_model(*second, 1))
    await asyncio.sleep(0.4)
    assert not waiting.done() and len(model.requests) == 1, "what was lost is still under way, as far as anybody knows"
    lost[0] = False
    again, other = await asyncio.gather(side.driver.call_model(*first, 1), waiting)
    assert again.outcome is ModelOutcome.ANSWERED
    assert other.outcome in (ModelOutcome.ANSWERED, ModelOutcome.FAILED)
    used = await side.used()
    assert running[1] == 1 and used.reserved_tokens == 0
    assert used.tokens <= LIMIT + ONE_CALL


async def test_waiting_ends_with_a_refusal_or_a_stop(
    opened: OpenLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "PATIENCE_SECONDS", 0.2)

    def gate() -> None:
        raise asyncio.CancelledError

    model, _ = talkative(gate)
    side = Side(opened, tmp_path, model, None)
    first, second, third = [await side.begun() for _ in range(3)]
    with pytest.raises(asyncio.CancelledError):
        await side.driver.call_model(*first, 1)
    refused = await side.driver.call_model(*second, 1)
    assert (refused.outcome, refused.error_code) == (ModelOutcome.FAILED, "budget_exceeded")
    assert "beside those under way" in (refused.error or "") and "sampling.max_tokens" in (refused.error or "")
    monkeypatch.setattr(admission, "PATIENCE_SECONDS", 60.0)
    waiting = asyncio.ensure_future(side.driver.call_model(*third, 1))
    await asyncio.sleep(0.2)
    await side.driver.turns.stop(third[1], actor="test")
    assert (await asyncio.wait_for(waiting, 20)).outcome is ModelOutcome.STOPPED
