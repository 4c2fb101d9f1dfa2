"""The child workflow of a Coordinator: decompose, hand out in auctions, let work, put together."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError

from workflows.agent_loop import AgentLoop, Answers
from workflows.agent_run import end_part
from workflows.calls import call
from workflows.children import Children, params_of
from workflows.ending import NOT_OURS, Ended, ending_of, refuse_work_after_cancellation

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import (
        AWARD_SUBTASKS,
        BRIEF_PART,
        END_PART,
        PLAN_SUBTASKS,
        AwardParams,
        AwardResult,
        CallModelResult,
        EndPartParams,
        LoopState,
        PartInput,
        PartResult,
        PlannedSubtask,
        PlanParams,
    )
    from milepost.contracts.naming import APPROVAL_ANSWERED, COORDINATOR_WORKFLOW
    from milepost.domain.errors import MilepostError
    from milepost.domain.teams import planning_part
    from milepost.domain.turns import TurnState

SKIPPED = "A subtask that it depends on has no result."


@workflow.defn(name=COORDINATOR_WORKFLOW, failure_exception_types=[MilepostError])
class CoordinatorWorkflow:
    """One goal. What is private to it, the state of its plan, lives here and ends with it."""

    @workflow.init
    def __init__(self, part: PartInput) -> None:
        self._part = part
        self._children = Children()
        self._rounds = 0
        self._waiting: dict[int, PlannedSubtask] = {}
        self._done: dict[int, bool] = {}
        self._running: dict[asyncio.Task[PartResult], int] = {}
        self._at_work: dict[asyncio.Task[PartResult], str] = {}
        self._wave = 0
        self._failure: str | None = None

    @workflow.signal(name=APPROVAL_ANSWERED)
    def approval_answered(self, approval_id: str) -> None:
        """Hand word of an answer on to the workers."""
        self._children.tell(approval_id)

    @workflow.run
    async def run(self, part: PartInput) -> PartResult:
        try:
            await self._coordinate()
            ended = Ended(TurnState.COMPLETED)
        except Ended as end:
            ended = end
        except asyncio.CancelledError:
            ended = Ended(TurnState.STOPPED)
        except ActivityError as error:
            ended = ending_of(error)
        await self._children.end_all(set(self._running))
        rounds = self._rounds + self._children.rounds
        return await end_part(part, ended, rounds, self._children.left_queue)

    async def _coordinate(self) -> None:
        part = self._part
        answer = await self._ask(planning_part(part.plan.agent))
        params = PlanParams(params_of(part), answer.effect_id)
        plan = await call(PLAN_SUBTASKS, params, summary="read the plan")
        self._waiting = {subtask.number: subtask for subtask in plan.subtasks}
        while self._waiting or self._running:
            await self._skip()
            await self._hand_out()
            refuse_work_after_cancellation()
            if self._running:
                await self._wait()
        if not any(self._done.values()):
            reason = f"All {len(self._done)} subtasks failed." + (
                f" The first: {self._failure}" if self._failure else ""
            )
            raise Ended(TurnState.FAILED, "subtasks_failed", reason)
        await self._ask(part.plan.agent)

    async def _ask(self, agent: str) -> CallModelResult:
        """One model call of the Coordinator itself."""
        brief = await call(BRIEF_PART, params_of(self._part, agent), summary=f"{agent}: record what is asked")
        self._rounds += 1
        loop = AgentLoop(self._part.turn, self._part.claim, self._part.prepared, Answers(), LoopState(), _never)
        return await loop.call_model(agent, brief.before + 1)

    async def _skip(self) -> None:
        """What waits for something without a result is not worked on, and neither is what waits for that."""
        while True:
            lost = [each for each in self._waiting.values() if any(self._done.get(n) is False for n in each.depends_on)]
            if not lost:
                return
            numbers = tuple(subtask.number for subtask in lost)
            params = EndPartParams(params_of(self._part), reason=SKIPPED, subtasks=numbers)
            await call(END_PART, params, summary=f"skip {len(numbers)} subtasks")
            for number in numbers:
                del self._waiting[number]
                self._done[number] = False

    async def _hand_out(self) -> None:
        ready = tuple(n for n, each in self._waiting.items() if all(self._done.get(d) for d in each.depends_on))
        if not ready:
            return
        self._wave += 1
        busy = tuple(sorted(self._at_work.values()))
        params = AwardParams(params_of(self._part), self._wave, ready, busy)
        wave: AwardResult = await call(AWARD_SUBTASKS, params, summary=f"wave {self._wave}")
        for awarded in wave.awards:
            del self._waiting[awarded.number]
            part = PartInput(
                self._part.turn,
                self._part.claim,
                self._part.prepared,
                awarded.plan,
                subtask=awarded.number,
                coordinator=self._part.plan.agent,
            )
            task = asyncio.ensure_future(self._children.run(part))
            self._running[task] = awarded.number
            self._at_work[task] = awarded.plan.agent

    async def _wait(self) -> None:
        ended, _ = await workflow.wait(list(self._running), return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            number = self._running.pop(task)
            del self._at_work[task]
            result = task.result()
            if result.state == TurnState.STOPPED or result.reason_code in NOT_OURS:
                raise Ended(result.state, result.reason_code, result.reason)
            self._done[number] = result.state == TurnState.COMPLETED
            if result.state != TurnState.COMPLETED:
                self._failure = self._failure or result.reason


def _never(state: LoopState) -> NoReturn:
    raise AssertionError("a single model call does not continue as new")
