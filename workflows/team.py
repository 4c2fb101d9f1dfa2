"""Several agents of one turn: each begins when those that it depends on have ended."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from workflows.children import Children
from workflows.ending import NOT_OURS, Ended

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import AgentPlan, PartInput, PartResult, PrepareResult, TurnInput
    from milepost.domain.teams import AgentFailure
    from milepost.domain.turns import TurnState


async def run_team(children: Children, turn: TurnInput, claim: str, prepared: PrepareResult) -> None:
    """Run all agents. Raises Ended if the turn does not complete.

    After a failure nothing new begins, and what runs comes to its end, unless the failed agent may be missing.
    """
    waiting = {plan.agent: plan for plan in prepared.agents}
    shared = PartInput(turn, claim, _without_agents(prepared), prepared.agents[0])
    done: dict[str, PartResult] = {}
    running: dict[asyncio.Task[PartResult], AgentPlan] = {}
    failure: PartResult | None = None
    try:
        while True:
            for plan in () if failure else _ready(waiting, done):
                del waiting[plan.agent]
                running[asyncio.ensure_future(children.run(_of(shared, plan)))] = plan
            if not running:
                break
            ended, _ = await workflow.wait(list(running), return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                plan, result = running.pop(task), task.result()
                done[plan.agent] = result
                if result.state == TurnState.STOPPED or result.reason_code in NOT_OURS:
                    raise _ended(result)
                if result.state != TurnState.COMPLETED and plan.on_failure == AgentFailure.FAIL:
                    failure = failure or result
    except BaseException:
        await children.end_all(set(running))
        raise
    if failure is not None:
        raise _ended(failure)
    if all(result.state != TurnState.COMPLETED for result in done.values()):
        raise Ended(TurnState.FAILED, "agents_failed", "Every agent of the turn failed.")


def _without_agents(prepared: PrepareResult) -> PrepareResult:
    return PrepareResult((), prepared.models_queue, prepared.sandbox_queue, team=True)


def _of(shared: PartInput, plan: AgentPlan) -> PartInput:
    return PartInput(shared.turn, shared.claim, shared.prepared, plan)


def _ready(waiting: dict[str, AgentPlan], done: dict[str, PartResult]) -> list[AgentPlan]:
    return [plan for plan in waiting.values() if all(name in done for name in plan.depends_on)]


def _ended(result: PartResult) -> Ended:
    if result.state == TurnState.STOPPED or result.reason_code in NOT_OURS:
        return Ended(result.state, result.reason_code, result.reason)
    return Ended(TurnState.FAILED, result.reason_code, f"Agent '{result.agent}' failed: {result.reason}")
