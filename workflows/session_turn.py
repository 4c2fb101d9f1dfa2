"""The workflow of one Session turn. Orchestration only: ids, digests and counts; all data lies in the ledger."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from workflows.agent_loop import AgentLoop, Answers
from workflows.calls import call
from workflows.children import Children
from workflows.ending import NOT_OURS, Ended, ending_of, undisturbed
from workflows.team import run_team

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import (
        END_CALLS,
        FINISH_TURN,
        MAX_BOUNDARY_TEXT,
        PREPARE_TURN,
        EndCallsParams,
        FinishParams,
        LoopState,
        PrepareParams,
        PrepareResult,
        TurnInput,
        TurnResult,
    )
    from milepost.contracts.naming import APPROVAL_ANSWERED, SESSION_TURN_WORKFLOW
    from milepost.domain.errors import MilepostError
    from milepost.domain.turns import TurnState


@workflow.defn(name=SESSION_TURN_WORKFLOW, failure_exception_types=[MilepostError])
class SessionTurnWorkflow:
    """Prepare, run each agent's loop, finish. Whatever happens in between ends in one `finish_turn`."""

    loop_type = AgentLoop

    @workflow.init
    def __init__(self, turn: TurnInput) -> None:
        self._turn = turn
        self._claim = turn.claim or workflow.info().run_id
        self._state = turn.resume or LoopState()
        self._answers = Answers()
        self._children = Children()
        self._left_queue: str | None = None

    @workflow.signal(name=APPROVAL_ANSWERED)
    def approval_answered(self, approval_id: str) -> None:
        """Wake the call that waits for this approval. What the answer is stands in the ledger."""
        self._answers.add(approval_id)
        self._children.tell(approval_id)

    @workflow.run
    async def run(self, turn: TurnInput) -> TurnResult:
        try:
            await self._work()
            ended = Ended(TurnState.COMPLETED)
        except Ended as end:
            ended = end
        except asyncio.CancelledError:
            ended = Ended(TurnState.STOPPED)
        except ActivityError as error:
            ended = ending_of(error)
        return await self._finish(ended)

    async def _work(self) -> None:
        prepared = self._turn.prepared
        if prepared is None:
            params = PrepareParams(self._turn.turn_id, self._turn.session_id, self._claim)
            prepared = await call(PREPARE_TURN, params, summary="claim the turn")
        if prepared.failure is not None:
            raise Ended(TurnState.FAILED, prepared.failure_code, prepared.failure)
        if prepared.team:
            await self._work_together(prepared)
            return
        for index, plan in enumerate(prepared.agents):
            if index < self._state.agent_index:
                continue
            loop = self._loop(prepared)
            try:
                await loop.run(plan)
            finally:
                self._state = loop.state
                self._left_queue = self._left_queue or loop.left_queue
            self._state = LoopState(agent_index=index + 1, total_rounds=self._state.total_rounds)

    async def _work_together(self, prepared: PrepareResult) -> None:
        turn = replace(self._turn, prepared=None, resume=None)
        try:
            await run_team(self._children, turn, self._claim, prepared)
        finally:
            self._state = replace(self._state, total_rounds=self._children.rounds)
            self._left_queue = self._children.left_queue

    def _loop(self, prepared: PrepareResult) -> AgentLoop:
        def hand_over(state: LoopState) -> NoReturn:
            workflow.continue_as_new(replace(self._turn, claim=self._claim, prepared=prepared, resume=state))

        return self.loop_type(self._turn, self._claim, prepared, self._answers, self._state, hand_over)

    async def _end_calls(self, queue: str) -> None:
        """Kill what a lost worker left running, before the turn is said to have ended."""
        params = EndCallsParams(self._turn.turn_id, self._turn.session_id, self._claim)
        try:
            await undisturbed(call(END_CALLS, params, queue=queue, summary="end calls left running"))
        except ActivityError as error:
            # Nobody there can be asked: the turn's end records the outcome as unknown.
            workflow.logger.warning("calls were left: %s", error.cause)

    async def _finish(self, ended: Ended) -> TurnResult:
        if ended.code in NOT_OURS:
            raise ApplicationError(ended.reason or "The turn is not this run's.", type=ended.code, non_retryable=True)
        if self._left_queue is not None:
            await self._end_calls(self._left_queue)
        params = FinishParams(
            turn_id=self._turn.turn_id,
            session_id=self._turn.session_id,
            claim=self._claim,
            state=ended.state,
            rounds=self._state.total_rounds,
            reason_code=ended.code,
            reason=None if ended.reason is None else ended.reason[:MAX_BOUNDARY_TEXT],
        )
        try:
            result = await undisturbed(call(FINISH_TURN, params, summary=f"record the end: {ended.state}"))
        except ActivityError as error:
            end = ending_of(error)
            raise ApplicationError(end.reason or "", type=end.code, non_retryable=True) from error
        return TurnResult(self._turn.turn_id, result.state, self._state.total_rounds, ended.reason)
