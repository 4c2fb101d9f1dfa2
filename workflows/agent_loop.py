"""One agent's loop: a model call, then the calls it asked for, until the model stops or a limit is met."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from temporalio import workflow

from workflows.calls import call
from workflows.ending import Ended, refuse_work_after_cancellation

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import (
        CALL_MODEL,
        RUN_TOOL,
        AgentPlan,
        CallModelParams,
        CallModelResult,
        LoopState,
        ModelOutcome,
        PlannedCall,
        PrepareResult,
        RunToolParams,
        RunToolResult,
        TurnInput,
    )
    from milepost.domain.turns import TurnState
    from milepost.engine.turn import CallShape, batches

FIRST_LOOK = 60.0
LONGEST_LOOK = 3600.0
SHORTEST_LOOK = 0.05
"""Seconds after which a waiting call looks into the ledger without having been told anything: growing, since word
comes through the outbox, which does not give up."""

MAX_UNREAD_ANSWERS = 1024
"""Word of approvals that no call waits for is kept, since it may come before the call has begun to wait."""

Handover = Callable[[LoopState], NoReturn]
"""Continues the workflow as a new run, with the state to go on from."""


class Answers:
    """Word of approvals that were answered. What an answer is stands in the ledger."""

    def __init__(self) -> None:
        self._unread: set[str] = set()

    def add(self, approval_id: str) -> None:
        """Note that an approval was answered."""
        if len(self._unread) < MAX_UNREAD_ANSWERS:
            self._unread.add(approval_id)

    async def wait(self, approval_id: str, seconds: float, patience: float) -> float:
        """Wait for word of an answer, or for the time to look by oneself; return how long to wait the next time.

        The ledger decides on every wake, so word that is lost, doubled or false costs a look at it and nothing else.
        """
        try:
            await workflow.wait_condition(
                lambda: approval_id in self._unread,
                timeout=min(max(seconds, SHORTEST_LOOK), patience),
                timeout_summary=f"approval {approval_id}",
            )
        except TimeoutError:
            return min(patience * 2, LONGEST_LOOK)
        self._unread.discard(approval_id)
        return FIRST_LOOK


class AgentLoop:
    """The rounds of one agent. `state` is where it is; `left_queue` is set when a call may be left running there."""

    def __init__(
        self,
        turn: TurnInput,
        claim: str,
        prepared: PrepareResult,
        answers: Answers,
        state: LoopState,
        handover: Handover,
    ) -> None:
        self.state = state
        self.left_queue: str | None = None
        self._turn = turn
        self._claim = claim
        self._prepared = prepared
        self._answers = answers
        self._handover = handover

    async def run(self, plan: AgentPlan) -> None:
        """Go on until the agent is done. Raises Ended with the reason why it is not."""
        while self.state.rounds_done < plan.max_rounds:
            answer = await self.call_model(plan.agent, self._round)
            results = await self._run_tools(plan.agent, answer)
            state = self.state
            self.state = replace(state, rounds_done=state.rounds_done + 1, total_rounds=state.total_rounds + 1)
            if not answer.calls:
                return
            shapes = [_shape(planned) for planned in answer.calls]
            reason = self.state.guard.check(answer.text_digest, shapes, [result.result_digest for result in results])
            if reason is not None:
                raise Ended(TurnState.FAILED, "loop_guard", reason)
            if workflow.info().is_continue_as_new_suggested():
                self._handover(self.state)
        reason = f"Agent '{plan.agent}' reached its limit of {plan.max_rounds} rounds without finishing."
        raise Ended(TurnState.FAILED, "round_limit", reason)

    @property
    def _round(self) -> int:
        """The number of the present round, counted from the agent's first one in this turn."""
        return self.state.before + self.state.rounds_done + 1

    async def call_model(self, agent: str, round_: int) -> CallModelResult:
        """One model call. Raises Ended when it was stopped or failed."""
        refuse_work_after_cancellation()
        turn = self._turn
        params = CallModelParams(turn.turn_id, turn.session_id, self._claim, agent, round_)
        queue = self._prepared.models_queue
        answer = await call(CALL_MODEL, params, queue=queue, summary=f"{agent}: model call {round_}")
        if answer.outcome == ModelOutcome.STOPPED:
            raise Ended(TurnState.STOPPED)
        if answer.outcome == ModelOutcome.FAILED:
            raise Ended(TurnState.FAILED, answer.error_code, answer.error)
        return answer

    async def _run_tools(self, agent: str, answer: CallModelResult) -> list[RunToolResult]:
        by_index = {planned.index: planned for planned in answer.calls}
        results: dict[int, RunToolResult] = {}
        for batch in batches([_shape(planned) for planned in answer.calls]):
            refuse_work_after_cancellation()
            batched = [by_index[shape.index] for shape in batch]
            calls = [asyncio.ensure_future(self._run_tool(agent, answer, each)) for each in batched]
            try:
                # Siblings of a failed call are awaited too: nothing may be at work when the turn is finished.
                done = await asyncio.gather(*calls, return_exceptions=True)
            except asyncio.CancelledError:
                for planned, task in zip(batched, calls, strict=True):
                    if task.cancelled() or task.exception() is not None:
                        self._leave(planned)
                raise
            for planned, result in zip(batched, done, strict=True):
                if isinstance(result, BaseException):
                    self._leave(planned)
                else:
                    results[planned.index] = result
            for result in done:
                if isinstance(result, BaseException):
                    raise result
            if any(result.stopped for result in results.values()):
                raise Ended(TurnState.STOPPED)
        return [results[planned.index] for planned in answer.calls]

    def _leave(self, planned: PlannedCall) -> None:
        """No attempt of the call is at work to end what it may have started in the sandbox."""
        if planned.sandboxed:
            self.left_queue = self._prepared.sandbox_queue

    async def _run_tool(self, agent: str, answer: CallModelResult, planned: PlannedCall) -> RunToolResult:
        queue = self._prepared.sandbox_queue if planned.sandboxed else self._prepared.models_queue
        params = RunToolParams(
            turn_id=self._turn.turn_id,
            session_id=self._turn.session_id,
            claim=self._claim,
            agent=agent,
            round=self._round,
            index=planned.index,
            tool=planned.tool,
            model_effect_id=answer.effect_id,
            team=self._prepared.team,
        )
        patience = FIRST_LOOK
        while True:
            result = await call(RUN_TOOL, params, queue=queue, summary=f"{agent}: {planned.tool}")
            if result.approval_id is None:
                return result
            patience = await self._answers.wait(result.approval_id, result.wait_seconds, patience)
            refuse_work_after_cancellation()


def _shape(planned: PlannedCall) -> CallShape:
    return CallShape(
        planned.index, planned.tool, planned.parallel, planned.input_digest, planned.malformed, planned.fault
    )
