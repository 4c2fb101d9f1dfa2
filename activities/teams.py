"""Turns of several agents: short ledger work between their model and tool calls, run as local activities."""

from __future__ import annotations

from temporalio import activity

from activities.boundary import boundary
from milepost.contracts.activities import (
    AWARD_SUBTASKS,
    BRIEF_PART,
    END_PART,
    PLAN_SUBTASKS,
    AgentPlan,
    AwardedSubtask,
    AwardParams,
    AwardResult,
    BriefResult,
    EndPartParams,
    EndPartResult,
    PartParams,
    PlannedSubtask,
    PlanParams,
    PlanResult,
)
from milepost.domain.events import AgentStarted
from milepost.services.teams import Part, PartEnd, Teams


def agent_plan(started: AgentStarted) -> AgentPlan:
    """What the workflow needs to know of a part."""
    return AgentPlan(started.agent, started.max_rounds, started.role, started.depends_on, started.on_failure)


class TeamActivities:
    """`brief_part`, `plan_subtasks`, `award_subtasks` and `end_part`."""

    def __init__(self, teams: Teams) -> None:
        self._teams = teams

    @activity.defn(name=BRIEF_PART.name)
    async def brief_part(self, params: PartParams) -> BriefResult:
        """Record what a part is asked."""
        with boundary():
            return BriefResult(await self._teams.brief(_part(params), params.subtask))

    @activity.defn(name=PLAN_SUBTASKS.name)
    async def plan_subtasks(self, params: PlanParams) -> PlanResult:
        """Make a plan of what the Coordinator's model answered."""
        with boundary():
            subtasks = await self._teams.plan(_part(params.part), params.effect_id)
            return PlanResult(tuple(PlannedSubtask(each.number, each.depends_on) for each in subtasks))

    @activity.defn(name=AWARD_SUBTASKS.name)
    async def award_subtasks(self, params: AwardParams) -> AwardResult:
        """Hold one round of the auction."""
        with boundary():
            awards = await self._teams.award(_part(params.part), params.wave, params.ready, params.busy)
            return AwardResult(tuple(AwardedSubtask(number, agent_plan(started)) for number, started in awards))

    @activity.defn(name=END_PART.name)
    async def end_part(self, params: EndPartParams) -> EndPartResult:
        """Record how a part ended, or that subtasks are skipped."""
        with boundary():
            part = _part(params.part)
            if params.state is None:
                await self._teams.skip(part, params.subtasks, params.reason or "skipped")
            else:
                end = PartEnd(params.state, params.reason_code, params.reason)
                await self._teams.end(part, end, subtask=params.part.subtask, coordinator=params.part.coordinator)
            return EndPartResult()


def _part(params: PartParams) -> Part:
    return Part(params.session_id, params.turn_id, params.claim, params.agent)
