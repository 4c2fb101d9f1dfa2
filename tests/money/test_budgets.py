"""Budgets on real workers and both databases: refused with numbers, shared by parallel turns, kept across a loss."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import NoReturn

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.budgets import Budget, Limits, Overflow, Spending
from milepost.domain.effects import EffectClass, EffectSpec, EffectState
from milepost.domain.errors import BudgetExceeded
from milepost.domain.events import BudgetReached, ModelCalled, ModelFailed, ModelRetried
from milepost.domain.messages import AssistantMessage, FinishReason, Sampling
from milepost.domain.providers import ScriptedProvider
from milepost.domain.turns import Turn, TurnState
from milepost.domain.usage import UNKNOWN_USAGE, Cost, Usage
from milepost.engine.budgets import session_scope
from milepost.engine.effects import Entry
from milepost.ports.ledger import LedgerTx, NewEvent
from milepost.providers.gateway import Gateway
from milepost.services.budgeting import Answered, Ask, reserve, settle_charged
from milepost.services.effects import Charge, EffectJournal, Settlement
from milepost.services.finishing import Ending, called_key, end_turn
from milepost.services.sessions import OpenSession
from milepost.services.turns import BeginTurn
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.money.test_turn_cost import Changing
from tests.support.databases import OpenLedger
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack
from tests.turns.conftest import NoSecrets
from tests.turns.test_turns import events_of

MakeStack = Callable[[Budget], Stack]
LIST_DIR = {"tool": "list_dir", "args": {"path": "."}}


@asynccontextmanager
async def budgeted(
    opened: OpenLedger, address: TemporalAddress, folder: Path, budget: Budget, output: int | None = 10
) -> AsyncIterator[Stack]:
    agent = AgentConfig("default", "scripted", "demo", sampling=Sampling(max_tokens=output), tools=("list_dir",))
    gateway = Gateway({"scripted": ScriptedProvider("scripted")}, NoSecrets())
    stack = await build_stack(
        opened.ledger,
        opened.notifier,
        FileBlobStore(folder / "blobs"),
        gateway,
        MemorySandboxes(),
        address,
        {"default": replace(agent, budget=budget)},
        prices=Changing(),
    )
    async with stack.worker():
        yield stack
    await gateway.close()


async def new_session(stack: Stack, folder: Path, budget: Limits | None = None) -> str:
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    return (await stack.sessions.open(OpenSession(str(folder), budget=budget))).session_id


async def play(stack: Stack, session: str, *responses: object, budget: Limits | None = None) -> Turn:
    script = json.dumps({"responses": responses})
    begun = await stack.turns.begin(BeginTurn(session, "go", script=script, budget=budget))
    return await stack.ended(begun.turn.turn_id)


def answer(tokens: int, *, calls: int = 0) -> dict[str, object]:
    return {"text": "ok", "usage": {"input": tokens, "output": 1}, "calls": [LIST_DIR] * calls}


async def spending(stack: Stack, session: str) -> Spending:
    return (await stack.history.usage(session)).spending


async def test_a_session_ends_turns_at_its_limit_and_the_message_has_the_numbers(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    async with budgeted(opened, temporal_address, tmp_path, Budget()) as stack:
        session = await new_session(stack, tmp_path / "w", Limits(tokens=1_500))
        first = await play(stack, session, answer(1_299))
        second = await play(stack, session, answer(5))
        assert (first.state, second.state) == (TurnState.COMPLETED, TurnState.FAILED)
        assert second.error_code == "budget_exceeded"
        assert "The session may use 1,500 (tokens): 1,300 are used" in (second.error_message or "")
        events = await events_of(stack, session)
        told = [event for event in events if isinstance(event, BudgetReached)]
        assert [(event.scope, event.limit, event.percent) for event in told] == [("session", "tokens", 80)]
        failed = [event for event in events if isinstance(event, ModelFailed)]
        assert [event.usage for event in failed] == [Usage()], "nothing was sent"
        used = await spending(stack, session)
        assert (used.tokens, used.reserved_tokens, used.model_calls) == (1_300, 0, 1)
        entry = await stack.history.entry(first.turn_id)
        assert any("80 % of its tokens reached" in note for note in entry.agents[0].notes)
        factor, samples = await opened.ledger.read(lambda tx: tx.budgets.factor("scripted", "demo"))
        assert samples == 1 and factor > 1, "1,299 tokens were reported for a short request"
        # Another Session has its own.
        assert (await play(stack, await new_session(stack, tmp_path / "x"), answer(5))).state is TurnState.COMPLETED


async def test_a_turn_has_limits_of_its_own_for_calls_tools_and_cost(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    async with budgeted(opened, temporal_address, tmp_path, Budget(turn=Limits(model_calls=2))) as stack:
        session = await new_session(stack, tmp_path / "w")
        for limits, responses, said in (
            (Limits(model_calls=1), [answer(5, calls=1), answer(5)], "1 (model calls): 1 are used"),
            (
                Limits(tool_calls=1),
                [answer(5, calls=2), answer(5)],
                "1 (tool calls): 0 are used, and this call may need 2",
            ),
            (Limits(cost=Decimal("0.000001")), [answer(5)], "(cost): 0 are used"),
            (Limits(seconds=0), [answer(5)], "0 (seconds)"),
            (None, [answer(5, calls=1), answer(6, calls=1), answer(7)], "2 (model calls)"),
        ):
            turn = await play(stack, session, *responses, budget=limits)
            assert turn.error_code == "budget_exceeded", turn
            assert said in (turn.error_message or "")
            fix = "Raise agents.default.budget.turn (" if limits is None else "Raise the budget of the turn's request ("
            assert fix in (turn.error_message or "") or (limits and limits.cost)
        assert (await play(stack, session, answer(5, calls=1), answer(5))).state is TurnState.COMPLETED
        slow = {"text": "words " * 40, "delay": 0.2}
        late = await play(stack, session, slow, budget=Limits(seconds=1.5))
        assert (late.state, late.error_code) == (TurnState.FAILED, "budget_time_up")


async def test_with_the_policy_warn_the_turn_goes_on_and_history_says_so(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    budget = Budget(turn=Limits(tokens=100), overflow=Overflow.WARN)
    async with budgeted(opened, temporal_address, tmp_path, budget) as stack:
        session = await new_session(stack, tmp_path / "w")
        turn = await play(stack, session, answer(300, calls=1), answer(5))
        assert turn.state is TurnState.COMPLETED
        told = [event for event in await events_of(stack, session) if isinstance(event, BudgetReached)]
        assert {(event.scope, event.limit, event.percent) for event in told} == {
            ("turn", "tokens", 80),
            ("turn", "tokens", 100),
        }


async def test_parallel_turns_of_one_agent_share_its_budget(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    budget = Budget(agent=Limits(tokens=1_000))
    async with budgeted(opened, temporal_address, tmp_path, budget, output=200) as stack:
        sessions = [await new_session(stack, tmp_path / str(n)) for n in range(6)]
        slow = {"text": "some words to stream", "delay": 0.1, "usage": {"input": 20, "output": 199}}
        turns = await asyncio.gather(*(play(stack, session, slow) for session in sessions))
        done = [turn for turn in turns if turn.state is TurnState.COMPLETED]
        refused = [turn for turn in turns if turn.error_code == "budget_exceeded"]
        assert len(done) + len(refused) == 6
        assert 1 <= len(done) <= 4
        used = await opened.ledger.read(lambda tx: tx.budgets.spending("agent/default/total"))
        assert used.usage.total_tokens == sum(turn.usage.total_tokens for turn in turns) <= 1_000
        assert (used.reserved_tokens, used.model_calls) == (0, len(done))


def model_spec(turn: Turn) -> EffectSpec:
    return EffectSpec(
        effect_id="e" * 64,
        idempotency_key="k",
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        generation=0,
        agent="default",
        position="model.1",
        operation="model:scripted/demo",
        effect_class=EffectClass.MODEL,
        input_digest="d",
    )


async def test_both_attempts_of_a_lost_call_are_charged_and_a_restart_changes_nothing(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    """Between the two attempts nothing is left but the rows."""
    async with budgeted(opened, temporal_address, tmp_path, Budget()) as stack:
        session = await new_session(stack, tmp_path / "w")
    script = json.dumps({"responses": [answer(5)]})
    turn = (await stack.turns.begin(BeginTurn(session, "go", script=script))).turn
    spec, scope = model_spec(turn), session_scope(session)
    ask = Ask(Budget(session=Limits(tokens=250)), "default", 100, Decimal(40))

    def attempt(tx: LedgerTx) -> object:
        effect = tx.effects.dispatch(spec, 1, "w")
        return reserve(tx, spec, effect.attempt, ask, 1)[0]

    def lost(tx: LedgerTx, number: int) -> None:
        event = ModelRetried(turn.turn_id, "default", spec.effect_id, number, "worker_lost", "lost", UNKNOWN_USAGE)
        for _ in range(2):  # told twice, charged once
            settle_charged(tx, [NewEvent(f"x/{number}", event, turn.turn_id)], 2)

    assert await opened.ledger.write(attempt) is None
    await opened.ledger.write(lambda tx: lost(tx, 1))
    assert await opened.ledger.write(attempt) is None
    held = await opened.ledger.read(lambda tx: tx.budgets.spending(scope))
    assert (held.assumed_tokens, held.reserved_tokens, held.tokens) == (100, 100, 200)
    refused = await opened.ledger.write(lambda tx: reserve(tx, spec, 3, ask, 3)[0])
    assert "250 (tokens): 200 are used" in str(refused)
    # Nobody comes back for the second one: the reconciler ends the turn.
    await opened.ledger.write(lambda tx: end_turn(tx, turn, Ending(TurnState.INTERRUPTED, "lost"), 4))
    used = await opened.ledger.read(lambda tx: tx.budgets.spending(scope))
    assert (used.assumed_tokens, used.reserved_tokens, used.model_calls) == (200, 0, 2)
    assert used.usage.spent == Cost(complete=False)
    assert await opened.ledger.read(lambda tx: tx.budgets.open_of_turn(turn.turn_id)) == []
    assert (await opened.ledger.read(lambda tx: tx.effects.get(spec.effect_id))).state is EffectState.CANCELLED  # type: ignore[union-attr]


async def test_answers_at_the_same_time_do_not_ask_for_more_tool_calls_than_are_left(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    """Both were asked for while none was used; what one has got is no longer there for the other."""
    budget = Budget(agent=Limits(tool_calls=4))
    async with budgeted(opened, temporal_address, tmp_path, budget) as stack:
        sessions = [await new_session(stack, tmp_path / str(n)) for n in range(2)]
    journal, usage = EffectJournal(opened.ledger, stack.parts.clock, "w"), Usage(5, 0, 1)
    under_way = []
    for number, session in enumerate(sessions):
        turn = (await stack.turns.begin(BeginTurn(session, "go"))).turn
        spec, ask = replace(model_spec(turn), effect_id=str(number) * 64), Ask(budget, "default", 10, None)
        await opened.ledger.write(lambda tx, turn=turn: tx.turns.claim(turn.turn_id, "run"))
        entered = await journal.enter(spec, "run", lambda attempt: [], charge=Charge(ask, _not_refused))
        assert entered.entry is Entry.DISPATCH
        called = ModelCalled(
            turn.turn_id,
            "default",
            spec.effect_id,
            1,
            1,
            "scripted",
            "demo",
            AssistantMessage(()),
            FinishReason.TOOL_CALLS,
            usage,
        )
        under_way.append((spec, ask, NewEvent(called_key(spec.effect_id), called, turn.turn_id)))

    async def settle(place: int, calls: int) -> None:
        spec, ask, event = under_way[place]
        outcome = Settlement(EffectState.SUCCEEDED, b"{}")
        await journal.settle(spec, 1, outcome, [event], Answered(ask, calls, 5))

    await settle(0, 3)
    with pytest.raises(BudgetExceeded, match=r"4 \(tool calls\): 3 are used, and this call may need 3"):
        await settle(1, 3)
    still = await opened.ledger.read(lambda tx: tx.effects.get(under_way[1][0].effect_id))
    assert still is not None and still.state is EffectState.DISPATCHED, "nothing of it was written"
    await settle(1, 0)
    used = await opened.ledger.read(lambda tx: tx.budgets.spending("agent/default/total"))
    assert (used.tool_calls, used.reserved_tokens, used.usage.total_tokens) == (3, 0, 12)


def _not_refused(attempt: int, error: BudgetExceeded) -> NoReturn:
    raise AssertionError(error)


@pytest.mark.parametrize("limit", [300, 10_000])
async def test_a_request_that_cannot_fit_the_window_is_refused_with_its_largest_parts(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Changing, "window", lambda self, provider, model: limit)
    async with budgeted(opened, temporal_address, tmp_path, Budget()) as stack:
        session = await new_session(stack, tmp_path / "w")
        script = json.dumps({"responses": [answer(5)]})
        begun = await stack.turns.begin(BeginTurn(session, "a long request " * 200, script=script))
        turn = await stack.ended(begun.turn.turn_id)
        if limit == 10_000:
            assert turn.state is TurnState.COMPLETED
            return
        assert (turn.state, turn.error_code) == (TurnState.FAILED, "context_too_large")
        assert "window of demo (300 tokens)" in (turn.error_message or "")
        assert "The largest parts: message 1 (request) " in (turn.error_message or "")
        assert turn.usage == Usage()
