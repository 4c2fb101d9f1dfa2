"""Beginning and ending the execution of a turn: short ledger work, run as local activities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from temporalio import activity

from activities.boundary import boundary
from activities.teams import agent_plan
from milepost.contracts.activities import (
    FINISH_TURN,
    PREPARE_TURN,
    FinishParams,
    FinishResult,
    PrepareParams,
    PrepareResult,
    boundary_text,
)
from milepost.domain.agents import AgentConfig
from milepost.domain.budgets import Budget, Limits
from milepost.domain.errors import MilepostError, TurnClaimed
from milepost.domain.events import AgentStarted, StreamKind
from milepost.domain.hooks import OnFailure
from milepost.domain.memory import MemorySettings
from milepost.domain.prices import RoutePrices
from milepost.domain.providers import Route
from milepost.domain.sessions import Session
from milepost.domain.teams import AgentRole, is_planning, is_worker
from milepost.domain.tools import (
    BUILTIN_TOOL_POLICIES,
    EDITING_TOOLS,
    MEMORY_TOOLS,
    READ_ATTACHMENT,
    UNSANDBOXED_TOOLS,
    ToolDefinition,
    tool_approval,
)
from milepost.domain.turns import Turn, TurnState
from milepost.engine.casting import Role, cast
from milepost.engine.overrides import overridden, with_skills
from milepost.ports.hooks import Hooks
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.prices import Prices
from milepost.ports.system import Clock
from milepost.ports.tools import CustomTools
from milepost.services.finishing import Ending, end_turn, started_key
from milepost.services.lives import require_started
from milepost.services.workbench import Workbench

ToolDefinitions = Callable[[Sequence[str]], tuple[ToolDefinition, ...]]
ChooseQueues = Callable[[LedgerTx, Session], tuple[str, str]]
"""(transaction, Session) -> task queues of model calls and of the Session's sandbox."""


class TurnActivities:
    """`prepare_turn` and `finish_turn`."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        agents: Mapping[str, AgentConfig],
        tools: ToolDefinitions,
        custom_tools: CustomTools,
        hooks: Hooks,
        workbench: Workbench,
        queues: ChooseQueues,
        prices: Prices,
        *,
        has_memory: bool = False,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._agents = agents
        self._tools = tools
        self._custom_tools = custom_tools
        self._hooks = hooks
        self._workbench = workbench
        self._queues = queues
        self._prices = prices
        self._has_memory = has_memory

    @activity.defn(name=PREPARE_TURN.name)
    async def prepare_turn(self, params: PrepareParams) -> PrepareResult:
        """Claim the turn for this workflow run and record what its agents are made of."""
        with boundary():
            reason = await self._workbench.unavailable()
            await self._prices.load()
            now = self._clock.now()

            def body(tx: LedgerTx) -> PrepareResult:
                tx.turns.lock_session(params.session_id)
                turn = tx.turns.claim(params.turn_id, params.claim)
                session = tx.sessions.get(turn.session_id)
                models_queue, sandbox_queue = self._queues(tx, session)
                limits = tx.budgets.limits(session.session_id)
                chosen = turn.request.options.agent
                named = (chosen,) if chosen else session.agents
                try:
                    roles, starts = cast(self._agents, named), []
                    bounds = _Bounds(limits, _shared(roles, turn.request.options.budget))
                    for role in roles:
                        require_started(tx, role.config.agent_id)
                        starts.append(self._started(turn, session, role, reason, bounds, _has_files(tx, turn)))
                except MilepostError as error:
                    return PrepareResult((), models_queue, sandbox_queue, error.code, boundary_text(str(error)))
                events = [NewEvent(started_key(turn.turn_id, each.agent), each, turn.turn_id) for each in starts]
                tx.events.append(session.session_id, StreamKind.SESSION, events, now)
                tx.notify(session.session_id)
                plans = tuple(agent_plan(each) for each in starts[: len(named)])
                return PrepareResult(plans, models_queue, sandbox_queue, team=len(starts) > 1)

            return await self._ledger.write(body)

    def _started(
        self, turn: Turn, session: Session, role: Role, tools_unavailable: str | None, bounds: _Bounds, attached: bool
    ) -> AgentStarted:
        options = turn.request.options
        named = not (is_worker(role.part) or is_planning(role.part))
        agent = with_skills(role.config, session.skills if named else None)
        agent = overridden(agent, options.overrides) if named else agent
        memory = agent.memory if self._has_memory and agent.role is AgentRole.AUTONOMOUS else None
        # Files are the request's; a worker is given a subtask.
        attached = attached and not is_worker(role.part)
        built_in = [
            tool
            for tool in agent.tools
            if tool in BUILTIN_TOOL_POLICIES and offered_with(memory, tool) and (attached or tool != READ_ATTACHMENT)
        ]
        sandboxed = [tool for tool in built_in if tool not in UNSANDBOXED_TOOLS]
        offered = [tool for tool in built_in if tools_unavailable is None or tool in UNSANDBOXED_TOOLS]
        # Tools of the user's own need no sandbox.
        own = [tool for tool in agent.tools if tool not in BUILTIN_TOOL_POLICIES]
        custom = self._custom_tools.offered(own, agent.agent_id)
        self._hooks.require([hook.name for hook in agent.hooks if hook.on_failure is OnFailure.DENY])
        approvals = {tool: tool_approval(tool, agent.approvals) for tool in offered}
        approvals |= {tool.name: tool_approval(tool.name, agent.approvals, tool.policy.approval) for _, tool in custom}
        provider, model = options.provider or agent.provider, options.model or agent.model
        # A person who names a route for the turn gets that one.
        fallbacks = () if options.provider or options.model else agent.fallbacks
        return AgentStarted(
            turn_id=turn.turn_id,
            agent=role.part,
            provider=provider,
            model=model,
            system_prompt=agent.system_prompt,
            tools=(*self._tools(offered), *(definition for definition, _ in custom)),
            sampling=agent.sampling,
            max_rounds=agent.max_rounds,
            tools_unavailable=tools_unavailable if sandboxed else None,
            approvals=approvals,
            approval_seconds=agent.approval_seconds,
            fallbacks=fallbacks,
            custom_tools=tuple(tool for _, tool in custom),
            prices=self._route_prices(Route(provider, model), *fallbacks),
            hooks=agent.hooks,
            budget=_budget(agent.budget, bounds),
            context=agent.context,
            memory=memory,
            role=agent.role,
            workers=agent.workers,
            depends_on=role.depends_on,
            on_failure=agent.on_failure,
        )

    def _route_prices(self, *routes: Route) -> tuple[RoutePrices, ...]:
        known = self._prices
        return tuple(
            RoutePrices(
                provider=route.provider,
                model=route.model,
                prices=known.of(route.provider, route.model),
                window=known.window(route.provider, route.model),
            )
            for route in routes
        )

    @activity.defn(name=FINISH_TURN.name)
    async def finish_turn(self, params: FinishParams) -> FinishResult:
        """Write the one terminal state; a turn that has it keeps it."""
        with boundary():
            now = self._clock.now()

            def body(tx: LedgerTx) -> FinishResult:
                tx.turns.lock_session(params.session_id)
                turn = tx.turns.get(params.turn_id)
                if turn.state.terminal:
                    return FinishResult(turn.state)
                if turn.claimed_run is not None and turn.claimed_run != params.claim:
                    raise TurnClaimed(f"Turn {turn.turn_id} belongs to another workflow run.")
                return FinishResult(end_turn(tx, turn, _ending(params), now))

            return await self._ledger.write(body)


def offered_with(memory: MemorySettings | None, tool: str) -> bool:
    """Whether a built-in tool is of any use to an agent with this memory."""
    if tool in EDITING_TOOLS:
        return memory is not None and any(not block.read_only for block in memory.blocks)
    return memory is not None or tool not in MEMORY_TOOLS


def _has_files(tx: LedgerTx, turn: Turn) -> bool:
    return bool(turn.request.attachments) or tx.attachments.count(turn.session_id, 1) > 0


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Limits that hold whatever an agent's own are: those of the Session, and of the turn as a whole."""

    session: Limits
    turn: Limits


def _shared(roles: Sequence[Role], request: Limits | None) -> Limits:
    """The limits of the whole turn: the request's, and of the agents that it begins with the tightest of each.

    What workers use counts for their Coordinator's turn; their own limits of a turn are beside it.
    """
    limits = request or Limits()
    for role in roles:
        if not is_worker(role.part):
            limits = limits.tightened(role.config.budget.turn)
    return limits


def _budget(configured: Budget, bounds: _Bounds) -> Budget:
    """The limits of a part of a turn: its agent's, tightened by those of the Session and of the turn."""
    return replace(
        configured,
        session=configured.session.tightened(bounds.session),
        turn=configured.turn.tightened(bounds.turn),
    )


def _ending(params: FinishParams) -> Ending:
    fallback = "Stopped on request." if params.state is TurnState.STOPPED else "The turn failed."
    return Ending(params.state, params.reason or fallback, params.reason_code or "turn_failed")
