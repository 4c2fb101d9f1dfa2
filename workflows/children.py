"""The child workflows of a turn's parts: starting them, waiting for them, and handing word of approvals on to them."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, ChildWorkflowError, is_cancelled_exception

from workflows.calls import call
from workflows.ending import NOT_OURS, undisturbed

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import END_PART, EndPartParams, PartInput, PartParams, PartResult
    from milepost.contracts.naming import (
        AGENT_WORKFLOW,
        APPROVAL_ANSWERED,
        COORDINATOR_WORKFLOW,
        part_workflow_id,
    )
    from milepost.domain.teams import AgentRole
    from milepost.domain.turns import TurnState


class Children:
    """What runs below a workflow. `rounds` and `left_queue` gather what ended children report."""

    def __init__(self) -> None:
        self.rounds = 0
        self.left_queue: str | None = None
        self._handles: dict[str, workflow.ChildWorkflowHandle[Any, PartResult]] = {}
        self._telling: set[asyncio.Task[None]] = set()

    def tell(self, approval_id: str) -> None:
        """Hand word of an answered approval on. Whose it is only the ledger knows, so every child gets it."""
        for handle in self._handles.values():
            task = asyncio.ensure_future(_tell(handle, approval_id))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def run(self, part: PartInput) -> PartResult:
        """Run one part to its end. A cancellation reaches the child, whose end is awaited all the same."""
        coordinates = part.plan.role == AgentRole.COORDINATOR
        turn = part.turn
        handle = await workflow.start_child_workflow(
            COORDINATOR_WORKFLOW if coordinates else AGENT_WORKFLOW,
            part,
            id=part_workflow_id(turn.instance_id, turn.turn_id, part.plan.agent, part.subtask),
            result_type=PartResult,
            retry_policy=RetryPolicy(maximum_attempts=1),
            static_summary=f"{part.plan.agent}" + (f", subtask {part.subtask}" if part.subtask else ""),
        )
        key = handle.id
        self._handles[key] = handle
        try:
            result: PartResult = await handle
        except ChildWorkflowError as error:
            return await self._lost(part, _failed(part, error))
        finally:
            del self._handles[key]
        self.rounds += result.rounds
        self.left_queue = self.left_queue or result.left_queue
        return result

    async def _lost(self, part: PartInput, result: PartResult) -> PartResult:
        """Record the end of a part whose workflow did not: somebody ended it in Temporal. What it ran may run on."""
        if result.state == TurnState.STOPPED or result.reason_code in NOT_OURS:
            return result
        self.left_queue = part.prepared.sandbox_queue
        end = EndPartParams(params_of(part), result.state, result.reason_code, result.reason)
        await undisturbed(call(END_PART, end, summary=f"record the end: {result.state}"))
        return result

    async def end_all(self, tasks: set[asyncio.Task[PartResult]]) -> None:
        """Cancel what runs and wait until it has really ended."""
        for task in tasks:
            task.cancel()
        while any(not task.done() for task in tasks):
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            except asyncio.CancelledError:
                continue
        for task in tasks:
            if not task.cancelled():
                task.exception()


def params_of(part: PartInput, agent: str | None = None) -> PartParams:
    """How activities name the part, or another one of the same agent."""
    turn = part.turn
    return PartParams(
        turn.turn_id, turn.session_id, part.claim, agent or part.plan.agent, part.subtask, part.coordinator
    )


async def _tell(handle: workflow.ChildWorkflowHandle[Any, PartResult], approval_id: str) -> None:
    try:
        await handle.signal(APPROVAL_ANSWERED, approval_id)
    except ApplicationError:
        # It has ended meanwhile, or will look into the ledger by itself.
        workflow.logger.debug("a child was not told of an answer")


def _failed(part: PartInput, error: ChildWorkflowError) -> PartResult:
    """A child that could not even say how it ended."""
    if is_cancelled_exception(error):
        return PartResult(part.plan.agent, TurnState.STOPPED, 0)
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return PartResult(part.plan.agent, TurnState.FAILED, 0, cause.type or "internal", cause.message)
    return PartResult(part.plan.agent, TurnState.FAILED, 0, "internal", f"Its workflow ended without a result: {cause}")
