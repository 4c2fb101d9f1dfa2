"""The workflow of one Session turn. Orchestration only: ids, digests and counts; all data lies in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as ActivityTimeout

from workflows.calls import call

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import (
        CALL_MODEL,
        END_CALLS,
        FINISH_TURN,
        HOST_SCHEDULE_TO_START,
        MAX_BOUNDARY_TEXT,
        PREPARE_TURN,
        RUN_TOOL,
        AgentPlan,
        CallModelParams,
        CallModelResult,
        EndCallsParams,
        FinishParams,
        LoopState,
        ModelOutcome,
        PlannedCall,
        PrepareParams,
        PrepareResult,
        RunToolParams,
        RunToolResult,
        TurnInput,
        TurnResult,
    )
    from milepost.contracts.naming import APPROVAL_ANSWERED, SESSION_TURN_WORKFLOW
    from milepost.domain.errors import Fenced, MilepostError, TurnClaimed, TurnNotRunning
    from milepost.domain.turns import TurnState
    from milepost.engine.turn import CallShape, batches

FIRST_LOOK = 60.0
LONGEST_LOOK = 3600.0
SHORTEST_LOOK = 0.05
"""Seconds after which a waiting call looks into the ledger without having been told anything: growing, since word
comes through the outbox, which does not give up."""

MAX_UNREAD_ANSWERS = 1024
"""Word of approvals that no call waits for is kept, since it may come before the call has begun to wait."""

_NOT_OURS = frozenset({TurnClaimed.code, TurnNotRunning.code, Fenced.code})
"""Errors that say that this run has no business with the turn any more: it ends without touching it."""


R = TypeVar("R")


class _Ended(Exception):
    def __init__(self, state: TurnState, code: str | None = None, reason: str | None = None) -> None:
        super().__init__(reason)
        self.state = state
        self.code = code
        self.reason = reason


@workflow.defn(name=SESSION_TURN_WORKFLOW, failure_exception_types=[MilepostError])
class SessionTurnWorkflow:
    """Prepare, run each agent's loop, finish. Whatever happens in between ends in one `finish_turn`."""

    @workflow.init
    def __init__(self, turn: TurnInput) -> None:
        self._turn = turn
        self._claim = turn.claim or workflow.info().run_id
        self._loop = turn.resume or LoopState()
        self._answered: set[str] = set()
        self._left_queue: str | None = None

    @workflow.signal(name=APPROVAL_ANSWERED)
    def approval_answered(self, approval_id: str) -> None:
        """Wake the call that waits for this approval. What the answer is stands in the ledger."""
        if len(self._answered) < MAX_UNREAD_ANSWERS:
            self._answered.add(approval_id)

    @workflow.run
    async def run(self, turn: TurnInput) -> TurnResult:
        try:
            await self._work()
            ended = _Ended(TurnState.COMPLETED)
        except _Ended as end:
            ended = end
        except asyncio.CancelledError:
            ended = _Ended(TurnState.STOPPED)
        except ActivityError as error:
            ended = _ending_of(error)
        return await self._finish(ended)

    async def _work(self) -> None:
        prepared = self._turn.prepared
        if prepared is None:
            params = PrepareParams(self._turn.turn_id, self._turn.session_id, self._claim)
            prepared = await call(PREPARE_TURN, params, summary="claim the turn")
        if prepared.failure is not None:
            raise _Ended(TurnState.FAILED, prepared.failure_code, prepared.failure)
        for index, plan in enumerate(prepared.agents):
            if index < self._loop.agent_index:
                continue
            await self._run_agent(plan, prepared)
            self._loop = LoopState(agent_index=index + 1, total_rounds=self._loop.total_rounds)

    async def _run_agent(self, plan: AgentPlan, prepared: PrepareResult) -> None:
        while self._loop.rounds_done < plan.max_rounds:
            answer = await self._call_model(plan.agent, self._loop.rounds_done + 1, prepared.models_queue)
            results = await self._run_tools(plan.agent, answer, prepared)
            self._loop = replace(
                self._loop, rounds_done=self._loop.rounds_done + 1, total_rounds=self._loop.total_rounds + 1
            )
            if not answer.calls:
                return
            shapes = [_shape(planned) for planned in answer.calls]
            reason = self._loop.guard.check(answer.text_digest, shapes, [result.result_digest for result in results])
            if reason is not None:
                raise _Ended(TurnState.FAILED, "loop_guard", reason)
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(replace(self._turn, claim=self._claim, prepared=prepared, resume=self._loop))
        reason = f"Agent '{plan.agent}' reached its limit of {plan.max_rounds} rounds without finishing."
        raise _Ended(TurnState.FAILED, "round_limit", reason)

    async def _call_model(self, agent: str, round_: int, queue: str) -> CallModelResult:
        _refuse_work_after_cancellation()
        params = CallModelParams(self._turn.turn_id, self._turn.session_id, self._claim, agent, round_)
        answer = await call(CALL_MODEL, params, queue=queue, summary=f"{agent}: model call {round_}")
        if answer.outcome == ModelOutcome.STOPPED:
            raise _Ended(TurnState.STOPPED)
        if answer.outcome == ModelOutcome.FAILED:
            raise _Ended(TurnState.FAILED, answer.error_code, answer.error)
        return answer

    async def _run_tools(self, agent: str, answer: CallModelResult, prepared: PrepareResult) -> list[RunToolResult]:
        by_index = {planned.index: planned for planned in answer.calls}
        results: dict[int, RunToolResult] = {}
        for batch in batches([_shape(planned) for planned in answer.calls]):
            _refuse_work_after_cancellation()
            batched = [by_index[shape.index] for shape in batch]
            calls = [asyncio.ensure_future(self._run_tool(agent, answer, each, prepared)) for each in batched]
            try:
                # Siblings of a failed call are awaited too: nothing may be at work when the turn is finished.
                done = await asyncio.gather(*calls, return_exceptions=True)
            except asyncio.CancelledError:
                for planned, task in zip(batched, calls, strict=True):
                    if task.cancelled() or task.exception() is not None:
                        self._leave(planned, prepared)
                raise
            for planned, result in zip(batched, done, strict=True):
                if isinstance(result, BaseException):
                    self._leave(planned, prepared)
                else:
                    results[planned.index] = result
            for result in done:
                if isinstance(result, BaseException):
                    raise result
            if any(result.stopped for result in results.values()):
                raise _Ended(TurnState.STOPPED)
        return [results[planned.index] for planned in answer.calls]

    def _leave(self, planned: PlannedCall, prepared: PrepareResult) -> None:
        """No attempt of the call is at work to end what it may have started in the sandbox."""
        if planned.sandboxed:
            self._left_queue = prepared.sandbox_queue

    async def _run_tool(
        self, agent: str, answer: CallModelResult, planned: PlannedCall, prepared: PrepareResult
    ) -> RunToolResult:
        queue = prepared.sandbox_queue if planned.sandboxed else prepared.models_queue
        params = RunToolParams(
            turn_id=self._turn.turn_id,
            session_id=self._turn.session_id,
            claim=self._claim,
            agent=agent,
            round=self._loop.rounds_done + 1,
            index=planned.index,
            tool=planned.tool,
            model_effect_id=answer.effect_id,
        )
        patience = FIRST_LOOK
        while True:
            result = await call(RUN_TOOL, params, queue=queue, summary=f"{agent}: {planned.tool}")
            if result.approval_id is None:
                return result
            patience = await self._until_answered(result.approval_id, result.wait_seconds, patience)
            _refuse_work_after_cancellation()

    async def _until_answered(self, approval_id: str, seconds: float, patience: float) -> float:
        """Wait for word of an answer, or for the time to look by oneself; return how long to wait the next time.

        The ledger decides on every wake, so word that is lost, doubled or false costs a look at it and nothing else.
        """
        try:
            await workflow.wait_condition(
                lambda: approval_id in self._answered,
                timeout=min(max(seconds, SHORTEST_LOOK), patience),
                timeout_summary=f"approval {approval_id}",
            )
        except TimeoutError:
            return min(patience * 2, LONGEST_LOOK)
        self._answered.discard(approval_id)
        return FIRST_LOOK

    async def _end_calls(self, queue: str) -> None:
        """Kill what a lost worker left running, before the turn is said to have ended."""
        params = EndCallsParams(self._turn.turn_id, self._turn.session_id, self._claim)
        try:
            await _undisturbed(call(END_CALLS, params, queue=queue, summary="end calls left running"))
        except ActivityError as error:
            # Nobody there can be asked: the turn's end records the outcome as unknown.
            workflow.logger.warning("calls were left: %s", error.cause)

    async def _finish(self, ended: _Ended) -> TurnResult:
        if ended.code in _NOT_OURS:
            raise ApplicationError(ended.reason or "The turn is not this run's.", type=ended.code, non_retryable=True)
        if self._left_queue is not None:
            await self._end_calls(self._left_queue)
        params = FinishParams(
            turn_id=self._turn.turn_id,
            session_id=self._turn.session_id,
            claim=self._claim,
            state=ended.state,
            rounds=self._loop.total_rounds,
            reason_code=ended.code,
            reason=None if ended.reason is None else ended.reason[:MAX_BOUNDARY_TEXT],
        )
        try:
            result = await _undisturbed(call(FINISH_TURN, params, summary=f"record the end: {ended.state}"))
        except ActivityError as error:
            end = _ending_of(error)
            raise ApplicationError(end.reason or "", type=end.code, non_retryable=True) from error
        return TurnResult(self._turn.turn_id, result.state, self._loop.total_rounds, ended.reason)


async def _undisturbed(work: Coroutine[Any, Any, R]) -> R:
    """Await work that a cancellation comes too late for."""
    task = asyncio.ensure_future(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                raise


def _refuse_work_after_cancellation() -> None:
    """A step that ends well although it was asked to end swallows the cancellation: nothing may follow it."""
    if workflow.cancellation_reason() is not None:
        raise _Ended(TurnState.STOPPED)


def _shape(planned: PlannedCall) -> CallShape:
    return CallShape(planned.index, planned.tool, planned.parallel, planned.input_digest, planned.malformed)


def _ending_of(error: ActivityError) -> _Ended:
    if is_cancelled_exception(error):
        return _Ended(TurnState.STOPPED)
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return _Ended(TurnState.FAILED, cause.type or "internal", cause.message)
    if isinstance(cause, ActivityTimeout) and cause.type == TimeoutType.SCHEDULE_TO_START:
        minutes = HOST_SCHEDULE_TO_START.total_seconds() / 60
        return _Ended(
            TurnState.FAILED,
            "worker_lost",
            f"No worker of the host that has the Session's container took step {error.activity_type} "
            f"within {minutes:g} minutes.",
        )
    if isinstance(cause, ActivityTimeout):
        return _Ended(
            TurnState.FAILED, "worker_lost", f"Step {error.activity_type} got no answer from a worker: {cause.message}."
        )
    return _Ended(TurnState.FAILED, "internal", str(cause or error))
