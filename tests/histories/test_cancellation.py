"""A cancellation at any point of a turn ends in exactly one recorded end, the right one, after which nothing runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from milepost.contracts.activities import (
    CallModelParams,
    CallModelResult,
    FinishParams,
    PrepareParams,
    PrepareResult,
    RunToolParams,
    RunToolResult,
)
from milepost.domain.tools import Parallel
from milepost.domain.turns import TurnState
from tests.histories.doubles import Script, answer, planned, serving, start, until_cancelled

STOPPED = (TurnState.STOPPED, None)


@pytest.fixture
def reached() -> asyncio.Event:
    """Set where the test wants the cancellation."""
    return asyncio.Event()


async def cancelled_at(client: Client, script: Script, reached: asyncio.Event) -> None:
    """Run a turn, cancel it once `reached` is set, and wait for its end."""
    async with serving(client, script, "turns"):
        handle = await start(client, "turns")
        async with asyncio.timeout(20):
            await reached.wait()
            await handle.cancel()
            result = await handle.result()
    assert script.end is not None and result.state is script.end.state


async def test_before_the_first_step(time_skipping: Client) -> None:
    script = Script()
    handle = await start(time_skipping, "turns")
    await handle.cancel()
    async with serving(time_skipping, script, "turns"):
        result = await handle.result()
    assert script.ended() == STOPPED
    assert result.state is TurnState.STOPPED
    assert script.begun("model") == 0


async def test_while_the_turn_is_prepared(time_skipping: Client, reached: asyncio.Event) -> None:
    async def plan(_: PrepareParams) -> PrepareResult:
        reached.set()
        # A local activity holds its workflow task: the cancellation is seen with the next one.
        await asyncio.sleep(0.5)
        return script.prepared()

    async def model(_: CallModelParams) -> CallModelResult:
        await until_cancelled()
        raise AssertionError

    script = Script(plan=plan, model=model)
    await cancelled_at(time_skipping, script, reached)
    assert script.ended() == STOPPED
    assert script.begun("tool") == 0


async def test_while_the_model_answers(time_skipping: Client, reached: asyncio.Event) -> None:
    async def model(_: CallModelParams) -> CallModelResult:
        reached.set()
        await until_cancelled()
        raise AssertionError

    script = Script(model=model)
    await cancelled_at(time_skipping, script, reached)
    assert script.ended() == STOPPED
    assert script.journal == ["prepare", "model 1", "finish"]


async def test_while_a_model_call_waits_for_its_retry(time_skipping: Client, reached: asyncio.Event) -> None:
    async def model(_: CallModelParams) -> CallModelResult:
        reached.set()
        raise activity_failure(delay=86_400)

    script = Script(model=model)
    async with serving(time_skipping, script, "turns"):
        handle = await start(time_skipping, "turns")
        async with asyncio.timeout(20):
            await reached.wait()
            await asyncio.sleep(0.3)
            await handle.cancel()
            await handle.result()
    assert script.ended() == STOPPED
    assert script.begun("model") == 1


async def test_an_answer_that_comes_in_spite_of_it_leads_to_no_tool(
    time_skipping: Client, reached: asyncio.Event
) -> None:
    async def model(_: CallModelParams) -> CallModelResult:
        reached.set()
        try:
            await until_cancelled()
        except asyncio.CancelledError:
            return answer(planned(0))
        raise AssertionError

    script = Script(model=model)
    await cancelled_at(time_skipping, script, reached)
    assert script.ended() == STOPPED
    assert script.journal == ["prepare", "model 1", "finish"]


async def test_while_a_tool_runs(time_skipping: Client, reached: asyncio.Event) -> None:
    async def tool(_: RunToolParams) -> RunToolResult:
        reached.set()
        await until_cancelled()
        raise AssertionError

    script = Script(tool=tool)
    await cancelled_at(time_skipping, script, reached)
    assert script.ended() == STOPPED
    assert script.journal == ["prepare", "model 1", "tool 1.0", "finish"]


async def test_every_tool_of_a_batch_has_ended_before_the_turn_does(
    time_skipping: Client, reached: asyncio.Event
) -> None:
    still_at_work = set()

    async def model(_: CallModelParams) -> CallModelResult:
        return answer(*(planned(index, Parallel.SAFE) for index in range(4)), planned(4))

    async def tool(params: RunToolParams) -> RunToolResult:
        still_at_work.add(params.index)
        if len(still_at_work) == 4:
            reached.set()
        try:
            await until_cancelled()
        except asyncio.CancelledError:
            # Ending takes a while, and not every one of them ends by its cancellation.
            await asyncio.sleep(0.1 * params.index)
            still_at_work.discard(params.index)
            if params.index % 2:
                return script.ran(params)
            raise
        raise AssertionError

    async def finish(_: FinishParams) -> None:
        assert not still_at_work

    script = Script(model=model, tool=tool, finish=finish)
    await cancelled_at(time_skipping, script, reached)
    assert script.ended() == STOPPED
    assert script.begun("tool") == 4
    assert script.begun("model") == 1


async def test_a_tool_result_that_comes_in_spite_of_it_leads_to_no_model_call(
    time_skipping: Client, reached: asyncio.Event
) -> None:
    async def tool(params: RunToolParams) -> RunToolResult:
        reached.set()
        try:
            await until_cancelled()
        except asyncio.CancelledError:
            return script.ran(params)
        raise AssertionError

    script = Script(tool=tool)
    await cancelled_at(time_skipping, script, reached)
    assert script.ended() == STOPPED
    assert script.begun("model") == 1


async def test_while_the_end_is_recorded_it_is_too_late(time_skipping: Client, reached: asyncio.Event) -> None:
    async def finish(_: FinishParams) -> None:
        reached.set()
        await asyncio.sleep(0.5)

    script = Script(finish=finish)
    await cancelled_at(time_skipping, script, reached)
    assert script.ended() == (TurnState.COMPLETED, None)


async def test_while_a_failed_recording_waits_for_its_retry(time_skipping: Client, reached: asyncio.Event) -> None:
    async def finish(_: FinishParams) -> None:
        if script.begun("finish") == 1:
            reached.set()
        if script.begun("finish") <= 2:
            await asyncio.sleep(0.1)
            raise activity_failure()

    script = Script(finish=finish)
    await cancelled_at(time_skipping, script, reached)
    assert script.ended() == (TurnState.COMPLETED, None)
    assert script.begun("finish") >= 3


def activity_failure(delay: float | None = None) -> ApplicationError:
    after = None if delay is None else timedelta(seconds=delay)
    return ApplicationError("not now", type="passing", next_retry_delay=after)


def test_the_control_notices_work_after_the_end() -> None:
    """What the tests above rest on."""
    script = Script(journal=["prepare", "finish", "model 2"], end=FinishParams("t", "s", "c", TurnState.STOPPED, 0))
    with pytest.raises(AssertionError):
        script.ended()
    script.journal = ["prepare", "finish", "finish"]
    assert script.ended() == STOPPED
    with pytest.raises(AssertionError):
        Script(journal=["prepare"]).ended()
