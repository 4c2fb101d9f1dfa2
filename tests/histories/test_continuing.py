"""Long turns go on in a new run with a bounded handover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from milepost.contracts.activities import (
    AgentPlan,
    CallModelParams,
    CallModelResult,
    LoopState,
    PrepareResult,
    RunToolParams,
    RunToolResult,
    TurnInput,
)
from milepost.domain.effects import EffectState
from milepost.domain.tools import MAX_CALLS_PER_RESPONSE, Parallel
from milepost.domain.turns import TurnState
from milepost.engine.turn import CallShape
from milepost.temporal.converter import DATA_CONVERTER, MAX_PAYLOAD_BYTES
from milepost.temporal.dev_server import executable
from tests.histories.bounds import event_sizes
from tests.histories.doubles import Script, answer, planned, serving, start

SUGGESTED_AT = 30
"""Events of one run after which the server of these tests suggests to go on in a new one."""


@pytest.fixture
async def forgetful() -> AsyncIterator[Client]:
    """A real dev server that suggests a new run early."""
    environment = await WorkflowEnvironment.start_local(
        data_converter=DATA_CONVERTER,
        dev_server_existing_path=str(executable()),
        dev_server_extra_args=[
            "--dynamic-config-value",
            f"limit.historyCount.suggestContinueAsNew={SUGGESTED_AT}",
        ],
    )
    async with environment:
        yield environment.client


async def test_a_long_turn_is_prepared_and_finished_once_over_several_runs(forgetful: Client) -> None:
    script = Script(rounds=12)
    async with serving(forgetful, script, "turns"):
        handle = await start(forgetful, "turns")
        async with asyncio.timeout(60):
            result = await handle.result()
    assert script.ended() == (TurnState.COMPLETED, None)
    assert result.rounds == 12
    assert script.begun("prepare") == script.begun("finish") == 1
    models = [entry for entry in script.journal if entry.startswith("model")]
    assert models == [f"model {round_}" for round_ in range(1, 13)]
    assert script.begun("tool") == 11
    assert script.claims == {handle.first_execution_run_id}, "every run works under the claim of the first"
    runs = [run async for run in forgetful.list_workflows(f'WorkflowId = "{handle.id}"')]
    assert len(runs) > 2
    for run in runs:
        history = await forgetful.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        assert len(history.events) < 2 * SUGGESTED_AT
        assert max(size for _, size in event_sizes(history)) < 8 * 1024


async def test_the_loop_guard_counts_across_runs(forgetful: Client) -> None:
    async def model(params: CallModelParams) -> CallModelResult:
        # Circles begin shortly before the first run ends.
        return answer(planned(0, digest="same" if params.round >= 3 else str(params.round)), text=str(params.round))

    async def tool(params: RunToolParams) -> RunToolResult:
        return RunToolResult("effect", EffectState.SUCCEEDED, "same", is_error=False)

    script = Script(model=model, tool=tool)
    async with serving(forgetful, script, "turns"):
        handle = await start(forgetful, "turns")
        async with asyncio.timeout(60):
            await handle.result()
    assert script.ended() == (TurnState.FAILED, "loop_guard")
    assert script.begun("model") == 5
    runs = [run async for run in forgetful.list_workflows(f'WorkflowId = "{handle.id}"')]
    assert len(runs) == 2


async def test_a_cancellation_reaches_the_run_that_goes_on(forgetful: Client) -> None:
    reached = asyncio.Event()

    async def model(params: CallModelParams) -> CallModelResult:
        if params.round == 5:
            reached.set()
            await asyncio.sleep(0.2)
        return answer(planned(0, digest=str(params.round)))

    script = Script(model=model)
    async with serving(forgetful, script, "turns"):
        handle = await start(forgetful, "turns")
        async with asyncio.timeout(60):
            await reached.wait()
            await forgetful.get_workflow_handle(handle.id).cancel()
            await handle.result()
    assert script.ended() == (TurnState.STOPPED, None)
    assert script.begun("model") == 5


@pytest.mark.parametrize("agents", [1, 64])
def test_the_handover_of_the_longest_turn_is_small(agents: int) -> None:
    state = LoopState(agent_index=agents, rounds_done=10_000, total_rounds=10_000)
    names = ["n" * 4096] * MAX_CALLS_PER_RESPONSE
    for round_ in range(10_000):
        calls = [CallShape(index, name, Parallel.SAFE, "d" * 64) for index, name in enumerate(names[: round_ % 3 + 1])]
        state.guard.check(f"{round_:064}", calls, ["r" * 64] * len(calls))
    calls = [CallShape(index, name, Parallel.SAFE, "d" * 64) for index, name in enumerate(names)]
    state.guard.check("t" * 64, calls, ["r" * 64] * len(calls))
    loop_state = DATA_CONVERTER.payload_converter.to_payloads([state])[0]
    assert len(loop_state.data) < 1024
    plans = tuple(AgentPlan("a" * 64, 64) for _ in range(agents))
    turn = TurnInput("t" * 64, "s" * 64, "i" * 64, "c" * 64, PrepareResult(plans, "q" * 200, "q" * 200), state)
    handover = DATA_CONVERTER.payload_converter.to_payloads([turn])[0]
    assert len(handover.data) < MAX_PAYLOAD_BYTES < 64 * 1024
