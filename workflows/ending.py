"""How the work of a turn's workflows ends when it does not simply end well."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import HOST_SCHEDULE_TO_START
    from milepost.domain.errors import Fenced, TurnClaimed, TurnNotRunning
    from milepost.domain.turns import TurnState

NOT_OURS = frozenset({TurnClaimed.code, TurnNotRunning.code, Fenced.code})
"""Errors that say that this run has no business with the turn any more: it ends without touching it."""

R = TypeVar("R")


class Ended(Exception):
    """Work that ends before its time, with the state to record and why."""

    def __init__(self, state: TurnState, code: str | None = None, reason: str | None = None) -> None:
        super().__init__(reason)
        self.state = state
        self.code = code
        self.reason = reason


async def undisturbed(work: Coroutine[Any, Any, R]) -> R:
    """Await work that a cancellation comes too late for."""
    task = asyncio.ensure_future(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise


def refuse_work_after_cancellation() -> None:
    """A step that ends well although it was asked to end swallows the cancellation: nothing may follow it."""
    if workflow.cancellation_reason() is not None:
        raise Ended(TurnState.STOPPED)


def ending_of(error: ActivityError) -> Ended:
    """What a step that failed for good means for the work."""
    if is_cancelled_exception(error):
        return Ended(TurnState.STOPPED)
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return Ended(TurnState.FAILED, cause.type or "internal", cause.message)
    if isinstance(cause, ActivityTimeout) and cause.type == TimeoutType.SCHEDULE_TO_START:
        minutes = HOST_SCHEDULE_TO_START.total_seconds() / 60
        return Ended(
            TurnState.FAILED,
            "worker_lost",
            f"No worker of the host that has the Session's container took step {error.activity_type} "
            f"within {minutes:g} minutes.",
        )
    if isinstance(cause, ActivityTimeout):
        return Ended(
            TurnState.FAILED, "worker_lost", f"Step {error.activity_type} got no answer from a worker: {cause.message}."
        )
    return Ended(TurnState.FAILED, "internal", str(cause or error))
