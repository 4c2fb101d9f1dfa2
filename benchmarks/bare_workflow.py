"""A workflow with the shape of a turn and activities that do nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import activity, workflow

_SECONDS = timedelta(seconds=30)


@activity.defn
async def bare_prepare(tools: int) -> int:
    return tools


@activity.defn
async def bare_call(tools: int) -> int:
    return tools


@activity.defn
async def bare_finish(tools: int) -> int:
    return tools


@workflow.defn
class BareTurn:
    """Local, model; with tools also that many calls at once and a second model call; local."""

    @workflow.run
    async def run(self, tools: int) -> int:
        await workflow.execute_local_activity(bare_prepare, tools, start_to_close_timeout=_SECONDS)
        await workflow.execute_activity(bare_call, tools, start_to_close_timeout=_SECONDS)
        if tools:
            calls = [
                workflow.execute_activity(bare_call, index, start_to_close_timeout=_SECONDS) for index in range(tools)
            ]
            await asyncio.gather(*calls)
            await workflow.execute_activity(bare_call, tools, start_to_close_timeout=_SECONDS)
        return await workflow.execute_local_activity(bare_finish, tools, start_to_close_timeout=_SECONDS)
