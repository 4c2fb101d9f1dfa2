"""Retries, lost workers, claims and limits, on a server whose clock jumps over waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from activities.boundary import application_error
from milepost.contracts import activities as contracts
from milepost.contracts.activities import (
    CALL_MODEL,
    RUN_TOOL,
    AgentPlan,
    CallModelParams,
    CallModelResult,
    LoopState,
    ModelOutcome,
    PrepareParams,
    PrepareResult,
    RunToolParams,
    RunToolResult,
    TurnInput,
)
from milepost.domain.effects import EffectState
from milepost.domain.errors import Fenced, ModelRateLimited, StorageUnavailable, TurnClaimed, TurnNotRunning
from milepost.domain.tools import Parallel
from milepost.domain.turns import TurnState
from tests.histories.doubles import Script, answer, planned, serving, start
from workflows import agent_loop


async def run(client: Client, script: Script, turn: TurnInput | None = None) -> contracts.TurnResult:
    async with serving(client, script, "turns"):
        handle = await start(client, "turns", turn)
        async with asyncio.timeout(60):
            return await handle.result()


async def test_a_turn_is_prepare_model_tools_finish(time_skipping: Client) -> None:
    script = Script(rounds=3)
    result = await run(time_skipping, script)
    assert script.ended() == (TurnState.COMPLETED, None)
    assert result.rounds == 3 and script.end is not None and script.end.rounds == 3
    assert script.journal == ["prepare", "model 1", "tool 1.0", "model 2", "tool 2.0", "model 3", "finish"]
    assert len(script.claims) == 1


async def test_safe_calls_run_together_and_the_others_one_by_one(time_skipping: Client) -> None:
    shapes = [Parallel.SAFE, Parallel.SAFE, Parallel.ORDERED, Parallel.SAFE, Parallel.EXCLUSIVE]
    at_work: set[int] = set()
    seen: dict[int, set[int]] = {}
    both = asyncio.Event()

    async def model(params: CallModelParams) -> CallModelResult:
        return answer(*(planned(index, shape) for index, shape in enumerate(shapes))) if params.round == 1 else answer()

    async def tool(params: RunToolParams) -> RunToolResult:
        at_work.add(params.index)
        if {0, 1} <= at_work:
            both.set()
        if params.index < 2:
            await both.wait()
        seen[params.index] = set(at_work)
        at_work.discard(params.index)
        return script.ran(params)

    script = Script(model=model, tool=tool)
    await run(time_skipping, script)
    assert script.ended() == (TurnState.COMPLETED, None)
    assert seen[0] | seen[1] == {0, 1}
    assert [seen[index] for index in (2, 3, 4)] == [{2}, {3}, {4}]


async def test_a_model_call_waits_as_long_as_the_provider_says(time_skipping_server: WorkflowEnvironment) -> None:
    times: list[float] = []

    async def model(_: CallModelParams) -> CallModelResult:
        times.append((await time_skipping_server.get_current_time()).timestamp())
        if len(times) == 1:
            raise application_error(ModelRateLimited("slow down", retry_after=5_400))
        return answer()

    script = Script(model=model)
    await run(time_skipping_server.client, script)
    assert script.ended() == (TurnState.COMPLETED, None)
    assert 5_400 <= times[1] - times[0] < 5_430


async def test_a_model_call_is_tried_as_often_as_its_contract_says(time_skipping_server: WorkflowEnvironment) -> None:
    times: list[float] = []

    async def model(_: CallModelParams) -> CallModelResult:
        times.append((await time_skipping_server.get_current_time()).timestamp())
        raise application_error(ModelRateLimited("slow down"))

    script = Script(model=model)
    await run(time_skipping_server.client, script)
    assert script.ended() == (TurnState.FAILED, "model_rate_limited")
    assert len(times) == CALL_MODEL.retry.maximum_attempts
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(gap >= wait for gap, wait in zip(gaps, (1, 2, 4, 8, 16), strict=True))


async def test_an_error_that_no_retry_can_help_is_not_retried(time_skipping: Client) -> None:
    async def tool(_: RunToolParams) -> RunToolResult:
        raise ApplicationError("broken ledger", type="ledger_corrupt", non_retryable=True)

    script = Script(tool=tool)
    await run(time_skipping, script)
    assert script.ended() == (TurnState.FAILED, "ledger_corrupt")
    assert script.end is not None and script.end.reason == "broken ledger"
    assert script.begun("tool") == 1


async def test_a_failed_answer_ends_the_turn_with_its_code(time_skipping: Client) -> None:
    async def model(_: CallModelParams) -> CallModelResult:
        return CallModelResult(ModelOutcome.FAILED, "effect", error_code="model_unauthorized", error="wrong key")

    script = Script(model=model)
    await run(time_skipping, script)
    assert script.ended() == (TurnState.FAILED, "model_unauthorized")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The contracts with short heartbeat timeouts: a running activity holds the server's clock, so these are real."""
    for name in ("CALL_MODEL", "RUN_TOOL"):
        contract = getattr(contracts, name)
        for module in (contracts, agent_loop):
            monkeypatch.setattr(module, name, replace(contract, heartbeat=timedelta(milliseconds=100)))
    yield


@pytest.mark.usefixtures("impatient")
async def test_a_model_call_whose_worker_is_lost_again_and_again_fails_the_turn(time_skipping: Client) -> None:
    async def model(_: CallModelParams) -> CallModelResult:
        await asyncio.Event().wait()
        raise AssertionError

    script = Script(model=model)
    await run(time_skipping, script)
    assert script.ended() == (TurnState.FAILED, "worker_lost")
    assert script.begun("model") == CALL_MODEL.retry.maximum_attempts


@pytest.mark.usefixtures("impatient")
async def test_a_tool_whose_worker_is_lost_again_and_again_fails_the_turn(time_skipping: Client) -> None:
    async def tool(_: RunToolParams) -> RunToolResult:
        await asyncio.Event().wait()
        raise AssertionError

    script = Script(tool=tool)
    await run(time_skipping, script)
    assert script.ended() == (TurnState.FAILED, "worker_lost")
    assert script.begun("tool") == RUN_TOOL.retry.maximum_attempts


async def test_ledger_work_is_retried_until_the_ledger_answers(time_skipping: Client) -> None:
    async def plan(_: PrepareParams) -> PrepareResult:
        if script.begun("prepare") < 3:
            raise application_error(StorageUnavailable("the database is restarting"))
        return script.prepared()

    async def finish(_: object) -> None:
        if script.begun("finish") < 3:
            raise application_error(StorageUnavailable("the database is restarting"))

    script = Script(plan=plan, finish=finish)
    await run(time_skipping, script)
    assert script.ended() == (TurnState.COMPLETED, None)


async def test_a_turn_that_cannot_run_is_finished_as_failed(time_skipping: Client) -> None:
    async def plan(_: PrepareParams) -> PrepareResult:
        return PrepareResult((), "turns", "turns", "agent_unknown", "There is no such agent.")

    script = Script(plan=plan)
    await run(time_skipping, script)
    assert script.ended() == (TurnState.FAILED, "agent_unknown")
    assert script.journal == ["prepare", "finish"]


@pytest.mark.parametrize("error", [TurnClaimed, TurnNotRunning, Fenced])
@pytest.mark.parametrize("step", ["prepare", "model", "tool"])
async def test_a_run_without_the_claim_ends_without_touching_the_turn(
    time_skipping: Client, step: str, error: type[TurnClaimed | TurnNotRunning | Fenced]
) -> None:
    async def refuse(_: object) -> CallModelResult | RunToolResult | PrepareResult:
        raise application_error(error("It belongs to another run."))

    script = Script()
    setattr(script, {"prepare": "plan"}.get(step, step), refuse)
    with pytest.raises(WorkflowFailureError) as failed:
        await run(time_skipping, script)
    assert isinstance(failed.value.cause, ApplicationError) and failed.value.cause.type == error.code
    assert script.begun("finish") == 0
    assert script.begun(step) == 1


async def test_a_turn_ends_at_the_limit_of_rounds(time_skipping: Client) -> None:
    script = Script(rounds=100, max_rounds=5)
    result = await run(time_skipping, script)
    assert script.ended() == (TurnState.FAILED, "round_limit")
    assert "limit of 5 rounds" in ((script.end and script.end.reason) or "")
    assert script.begun("model") == result.rounds == 5


async def test_a_stopped_tool_ends_the_turn_as_stopped(time_skipping: Client) -> None:
    async def model(_: CallModelParams) -> CallModelResult:
        return answer(planned(0), planned(1))

    async def tool(_: RunToolParams) -> RunToolResult:
        return RunToolResult("effect", EffectState.CANCELLED, "", is_error=True, stopped=True)

    script = Script(model=model, tool=tool)
    await run(time_skipping, script)
    assert script.ended() == (TurnState.STOPPED, None)
    assert script.begun("tool") == 1


async def test_a_resumed_run_goes_on_where_the_one_before_ended(time_skipping: Client) -> None:
    script = Script(rounds=7, max_rounds=64)
    prepared = PrepareResult((AgentPlan("first", 64), AgentPlan("second", 64)), "turns", "turns")
    turn = TurnInput("trn_1", "ses_1", "ins_1", "claim-1", prepared, LoopState(1, rounds_done=5, total_rounds=9))
    result = await run(time_skipping, script, turn)
    assert script.ended() == (TurnState.COMPLETED, None)
    assert script.journal == ["model 6", "tool 6.0", "model 7", "finish"]
    assert script.claims == {"claim-1"}
    assert result.rounds == 11
