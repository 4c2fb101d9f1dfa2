"""The child workflow of one agent's part of a turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from workflows.agent_loop import AgentLoop, Answers
from workflows.calls import call
from workflows.children import params_of
from workflows.ending import NOT_OURS, Ended, ending_of, undisturbed

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import (
        BRIEF_PART,
        END_PART,
        MAX_BOUNDARY_TEXT,
        EndPartParams,
        LoopState,
        PartInput,
        PartResult,
    )
    from milepost.contracts.naming import AGENT_WORKFLOW, APPROVAL_ANSWERED
    from milepost.domain.errors import MilepostError
    from milepost.domain.turns import TurnState


@workflow.defn(name=AGENT_WORKFLOW, failure_exception_types=[MilepostError])
class AgentWorkflow:
    """Record what the agent is asked, run its loop, record how it ended. The turn's end is its parent's business."""

    @workflow.init
    def __init__(self, part: PartInput) -> None:
        self._part = part
        self._answers = Answers()

        def hand_over(state: LoopState) -> NoReturn:
            workflow.continue_as_new(replace(part, resume=state))

        self._loop = AgentLoop(
            part.turn, part.claim, part.prepared, self._answers, part.resume or LoopState(), hand_over
        )

    @workflow.signal(name=APPROVAL_ANSWERED)
    def approval_answered(self, approval_id: str) -> None:
        """Wake the call that waits for this approval."""
        self._answers.add(approval_id)

    @workflow.run
    async def run(self, part: PartInput) -> PartResult:
        try:
            if part.resume is None:
                brief = await call(BRIEF_PART, params_of(part), summary="record what is asked")
                self._loop.state = LoopState(before=brief.before)
            await self._loop.run(part.plan)
            ended = Ended(TurnState.COMPLETED)
        except Ended as end:
            ended = end
        except asyncio.CancelledError:
            ended = Ended(TurnState.STOPPED)
        except ActivityError as error:
            ended = ending_of(error)
        return await end_part(part, ended, self._loop.state.total_rounds, self._loop.left_queue)


async def end_part(part: PartInput, ended: Ended, rounds: int, left_queue: str | None) -> PartResult:
    """Record the end, except of a part that was stopped: with it the whole turn ends."""
    if ended.code in NOT_OURS:
        raise ApplicationError(ended.reason or "The turn is not this run's.", type=ended.code, non_retryable=True)
    reason = None if ended.reason is None else ended.reason[:MAX_BOUNDARY_TEXT]
    if ended.state != TurnState.STOPPED:
        params = EndPartParams(params_of(part), ended.state, ended.code, reason)
        try:
            await undisturbed(call(END_PART, params, summary=f"record the end: {ended.state}"))
        except ActivityError as error:
            end = ending_of(error)
            raise ApplicationError(end.reason or "", type=end.code, non_retryable=True) from error
    return PartResult(part.plan.agent, ended.state, rounds, ended.code, reason, left_queue)
