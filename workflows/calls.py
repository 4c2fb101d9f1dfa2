"""Calling activities by their contracts."""

from __future__ import annotations

from typing import TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import (
        HOST_SCHEDULE_TO_START,
        PAYLOAD_UNDECODABLE,
        ActivityContract,
        RetryRule,
    )
    from milepost.contracts.naming import bound_to_host

P = TypeVar("P")
R = TypeVar("R")

MAX_UNREAD = 100
"""How often a step that no worker could read is offered again, each time with all its attempts: for hours."""


async def call(
    contract: ActivityContract[P, R],
    params: P,
    *,
    queue: str | None = None,
    summary: str | None = None,
) -> R:
    """Run an activity by its contract; local ones inside the workflow task.

    A remote one is awaited until it has really ended, also when cancelled, so that nothing of a turn is still at work
    when the turn is finished.
    """
    if contract.local:
        local: R = await workflow.execute_local_activity(
            contract.name,
            params,
            result_type=contract.result,
            start_to_close_timeout=contract.start_to_close,
            retry_policy=_retry(contract.retry),
            summary=summary,
        )
        return local
    waits = contract.schedule_to_start
    if waits is None and queue is not None and bound_to_host(queue):
        waits = HOST_SCHEDULE_TO_START
    offered = 0
    while True:
        offered += 1
        try:
            remote: R = await workflow.execute_activity(
                contract.name,
                params,
                result_type=contract.result,
                task_queue=queue,
                start_to_close_timeout=contract.start_to_close,
                schedule_to_start_timeout=waits,
                heartbeat_timeout=contract.heartbeat,
                retry_policy=_retry(contract.retry),
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                summary=summary,
            )
            return remote
        except ActivityError as error:
            if not _unread(error) or offered == MAX_UNREAD:
                raise


def _unread(error: ActivityError) -> bool:
    """Whether the step never began, since the workers that took it could not decrypt what it was given."""
    cause: BaseException | None = error.cause
    while cause is not None:
        if isinstance(cause, ApplicationError) and cause.type == PAYLOAD_UNDECODABLE:
            return True
        cause = cause.__cause__
    return False


def _retry(rule: RetryRule) -> RetryPolicy:
    return RetryPolicy(
        initial_interval=rule.initial,
        maximum_interval=rule.maximum,
        backoff_coefficient=rule.backoff,
        maximum_attempts=rule.maximum_attempts,
    )
