"""A Temporal parent with a Coordinator's shape and children with that of its workers; activities do nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow

from benchmarks.bare_workflow import bare_call, bare_finish, bare_prepare

_SECONDS = timedelta(seconds=30)


@workflow.defn
class BareWorker:
    """Local, model, local."""

    @workflow.run
    async def run(self, number: int) -> int:
        await workflow.execute_local_activity(bare_prepare, number, start_to_close_timeout=_SECONDS)
        await workflow.execute_activity(bare_call, number, start_to_close_timeout=_SECONDS)
        return await workflow.execute_local_activity(bare_finish, number, start_to_close_timeout=_SECONDS)


@workflow.defn
class BareTeam:
    """Local, model, local, the children at once, local, model, local."""

    @workflow.run
    async def run(self, workers: int) -> int:
        await workflow.execute_local_activity(bare_prepare, workers, start_to_close_timeout=_SECONDS)
        await workflow.execute_activity(bare_call, workers, start_to_close_timeout=_SECONDS)
        await workflow.execute_local_activity(bare_prepare, workers, start_to_close_timeout=_SECONDS)
        own = workflow.info().workflow_id
        children = [
            workflow.execute_child_workflow(BareWorker.run, number, id=f"{own}/{number}") for number in range(workers)
        ]
        await asyncio.gather(*children)
        await workflow.execute_local_activity(bare_prepare, workers, start_to_close_timeout=_SECONDS)
        await workflow.execute_activity(bare_call, workers, start_to_close_timeout=_SECONDS)
        return await workflow.execute_local_activity(bare_finish, workers, start_to_close_timeout=_SECONDS)
