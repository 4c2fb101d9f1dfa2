"""Waiting for a person: word of an answer, the looks without it, cancellation, runs that go on."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from milepost.contracts.activities import RunToolParams, RunToolResult
from milepost.contracts.naming import APPROVAL_ANSWERED
from milepost.domain.effects import EffectState
from milepost.domain.turns import TurnState
from tests.histories.doubles import Script, serving, start
from tests.histories.test_continuing import forgetful

__all__ = ["forgetful"]


def waits(params: RunToolParams, seconds: float = 1000) -> RunToolResult:
    return RunToolResult(
        "effect",
        EffectState.AWAITING_APPROVAL,
        "",
        is_error=False,
        approval_id=f"apr_{params.round}",
        wait_seconds=seconds,
    )


async def timers(client: Client, handle: WorkflowHandle[Any, Any]) -> tuple[list[float], int]:
    """(seconds of every timer, how many of them fired) of the latest run."""
    history = await client.get_workflow_handle(handle.id).fetch_history()
    started = [
        event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED
    ]
    return started, sum(event.event_type == EventType.EVENT_TYPE_TIMER_FIRED for event in history.events)


async def test_word_that_comes_before_the_wait_is_not_lost(time_skipping: Client) -> None:
    async def tool(params: RunToolParams) -> RunToolResult:
        if script.begun("tool") > 1:
            return script.ran(params)
        mine = time_skipping.get_workflow_handle(activity.info().workflow_id)
        for approval_id in ("apr_1", "apr_1", "apr_of_another"):
            await mine.signal(APPROVAL_ANSWERED, approval_id)
        return waits(params)

    script = Script(tool=tool)
    async with serving(time_skipping, script, "turns"):
        handle = await start(time_skipping, "turns")
        async with asyncio.timeout(60):
            await handle.result()
    assert script.ended() == (TurnState.COMPLETED, None)
    assert script.begun("tool") == 2
    assert await timers(time_skipping, handle) == ([], 0)


async def test_without_any_word_it_looks_by_itself_and_ever_more_rarely(time_skipping: Client) -> None:
    async def tool(params: RunToolParams) -> RunToolResult:
        return waits(params, 5000) if script.begun("tool") < 9 else script.ran(params)

    script = Script(tool=tool)
    async with serving(time_skipping, script, "turns"):
        handle = await start(time_skipping, "turns")
        async with asyncio.timeout(60):
            await handle.result()
    assert script.ended() == (TurnState.COMPLETED, None)
    started, fired = await timers(time_skipping, handle)
    assert started == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert fired == len(started)


async def test_it_looks_when_the_time_for_an_answer_is_over(time_skipping: Client) -> None:
    async def tool(params: RunToolParams) -> RunToolResult:
        return waits(params, 7.5) if script.begun("tool") == 1 else script.ran(params)

    script = Script(tool=tool)
    async with serving(time_skipping, script, "turns"):
        handle = await start(time_skipping, "turns")
        async with asyncio.timeout(60):
            await handle.result()
    assert await timers(time_skipping, handle) == ([7.5], 1)


async def test_a_cancellation_ends_the_waiting_at_once(time_skipping: Client) -> None:
    asked = asyncio.Event()

    async def tool(params: RunToolParams) -> RunToolResult:
        asked.set()
        return waits(params)

    script = Script(tool=tool)
    async with serving(time_skipping, script, "turns"):
        handle = await start(time_skipping, "turns")
        async with asyncio.timeout(60):
            await asked.wait()
            await handle.cancel()
            await handle.result()
    assert script.ended() == (TurnState.STOPPED, None)
    assert script.begun("tool") == 1
    assert (await timers(time_skipping, handle))[1] == 0


async def test_answers_reach_the_run_that_goes_on(forgetful: Client) -> None:
    seen: set[int] = set()

    async def tool(params: RunToolParams) -> RunToolResult:
        if params.round in seen:
            return script.ran(params)
        seen.add(params.round)
        asyncio.get_running_loop().call_later(0.1, words.put_nowait, f"apr_{params.round}")
        return waits(params)

    script = Script(rounds=8, tool=tool)
    words: asyncio.Queue[str] = asyncio.Queue()
    async with serving(forgetful, script, "turns"):
        handle = await start(forgetful, "turns")
        async with asyncio.timeout(60):
            for _ in range(7):
                # As the product does it: to the id, whichever run has it.
                await forgetful.get_workflow_handle(handle.id).signal(APPROVAL_ANSWERED, await words.get())
            await handle.result()
    assert script.ended() == (TurnState.COMPLETED, None)
    assert script.begun("tool") == 14
    assert len([run async for run in forgetful.list_workflows(f'WorkflowId = "{handle.id}"')]) > 2
