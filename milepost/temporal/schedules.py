"""Schedules of this instance on the cluster."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from milepost.contracts.naming import CONSOLIDATION_WORKFLOW, TURNS_QUEUE, consolidation_id, queue_name
from milepost.observability.logging import get_logger

RPC_TIMEOUT = timedelta(seconds=10)
EXECUTION_TIMEOUT = timedelta(hours=6)
CATCH_UP = timedelta(minutes=1)
"""After a pause of the cluster at most this much of what was missed is made up for."""

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0

_log = get_logger(__name__)


async def keep_consolidation(client: Client, instance_id: str, every: timedelta | None) -> None:
    """Make, change or (without `every`) remove the schedule of consolidations; tries until the cluster answers.

    A schedule that a person has paused in Temporal's UI stays paused.
    """
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            await set_consolidation(client, instance_id, every)
        except RPCError as error:
            _log.warning("schedule.unset", error=str(error.message))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
        else:
            return


async def set_consolidation(client: Client, instance_id: str, every: timedelta | None) -> None:
    """One try of `keep_consolidation`. Raises RPCError."""
    name = consolidation_id(instance_id)
    handle = client.get_schedule_handle(name)
    if every is None:
        try:
            await handle.delete(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        return
    wanted = _schedule(name, instance_id, every)
    try:
        await client.create_schedule(name, wanted, rpc_timeout=RPC_TIMEOUT)
    except ScheduleAlreadyRunningError:

        async def change(found: ScheduleUpdateInput) -> ScheduleUpdate:
            return ScheduleUpdate(replace(wanted, state=found.description.schedule.state))

        await handle.update(change, rpc_timeout=RPC_TIMEOUT)


def _schedule(name: str, instance_id: str, every: timedelta) -> Schedule:
    return Schedule(
        action=ScheduleActionStartWorkflow(
            CONSOLIDATION_WORKFLOW,
            id=name,
            task_queue=queue_name(instance_id, TURNS_QUEUE),
            execution_timeout=EXECUTION_TIMEOUT,
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
    )
