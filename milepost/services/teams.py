"""Agents that work together in a turn: what each is asked, who does what, and how each ended. All of it is events."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from milepost.domain.agents import DEFAULT_SYSTEM_PROMPT
from milepost.domain.content import Content
from milepost.domain.errors import LedgerCorrupt
from milepost.domain.events import AgentOutput, AgentStarted, Event, ModelCalled, StreamKind, TurnBegun
from milepost.domain.team_events import AgentBriefed, AgentEnded, GoalDecomposed, SubtaskEnded, SubtasksAwarded
from milepost.domain.teams import (
    MAX_SUBTASKS,
    AgentRole,
    Subtask,
    SubtaskState,
    agent_id_of,
    conversation_of,
    coordinator_of,
    is_planning,
    is_worker,
    planning_part,
    worker_part,
)
from milepost.domain.tools import Approval, CustomTool, ToolDefinition
from milepost.domain.turns import Turn, TurnState
from milepost.engine import auction, briefs, planning
from milepost.engine.budgets import remaining_tokens, scopes
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.system import Clock
from milepost.services.contents import Contents
from milepost.services.effects import require_claim
from milepost.services.finishing import agent_output, bounded_error, started_key, turn_events

_TYPES = tuple(
    cls.TYPE
    for cls in (
        TurnBegun,
        AgentStarted,
        ModelCalled,
        AgentOutput,
        AgentBriefed,
        AgentEnded,
        GoalDecomposed,
        SubtasksAwarded,
        SubtaskEnded,
    )
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a turn, as an activity names it. `claim` is the run that owns the turn."""

    session_id: str
    turn_id: str
    claim: str
    agent: str


@dataclass(frozen=True, slots=True)
class PartEnd:
    """How a part ended; the reason is for people."""

    state: TurnState
    code: str | None = None
    reason: str | None = None


class _Team:
    """What a turn has recorded of its parts."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.started = {event.agent: event for event in events if isinstance(event, AgentStarted)}
        self.request = next(event.request.text for event in events if isinstance(event, TurnBegun))

    def rounds(self, agent: str) -> int:
        """Model calls that the part has made so far."""
        return sum(isinstance(event, ModelCalled) and event.agent == agent for event in self.events)

    def text(self, agent: str) -> str:
        """What the part said last, since it was asked."""
        briefed = self.brief(agent)
        first = briefed.number if briefed else 1
        calls = [
            event
            for event in self.events
            if isinstance(event, ModelCalled) and event.agent == agent and event.round >= first
        ]
        return next((event.message.text for event in reversed(calls) if event.message.text), "")

    def plans(self, agent: str) -> list[GoalDecomposed]:
        return [event for event in self.events if isinstance(event, GoalDecomposed) and event.agent == agent]

    def plan(self, agent: str) -> GoalDecomposed:
        """The plan that a Coordinator carries out now. Raises LedgerCorrupt if there is none."""
        plans = self.plans(agent)
        if not plans:
            raise LedgerCorrupt(f"The turn has no plan of '{agent}'.")
        return plans[-1]

    def ends(self, agent: str) -> dict[int, SubtaskEnded]:
        """How a Coordinator's subtasks ended, by number."""
        ended = (event for event in self.events if isinstance(event, SubtaskEnded) and event.agent == agent)
        return {event.subtask: event for event in ended}

    def brief(self, agent: str) -> AgentBriefed | None:
        """What the part was asked last."""
        found = [event for event in self.events if isinstance(event, AgentBriefed) and event.agent == agent]
        return found[-1] if found else None


class Teams:
    """Transactions of turns with several agents. Each can be asked for again and then finds what it wrote."""

    def __init__(self, ledger: Ledger, contents: Contents, clock: Clock) -> None:
        self._ledger = ledger
        self._contents = contents
        self._clock = clock

    async def brief(self, part: Part, subtask: int = 0) -> int:
        """Record what the part is asked; return how many model calls it has made before. Raises TurnClaimed."""
        request = await self._request(part)
        now = self._clock.now()

        def body(tx: LedgerTx) -> int:
            turn = require_claim(tx, part.turn_id, part.claim)
            team = _read(tx, turn)
            rounds = team.rounds(part.agent)
            number = rounds + 1
            text = _asked(team, part.agent, subtask, request)
            # A worker may get its next subtask without having made a call: the number alone does not tell them apart.
            key = f"{part.turn_id}/{part.agent}/brief/{number}" + (f"/{subtask}" if subtask else "")
            if text and tx.events.find(part.session_id, key) is None:
                briefed = AgentBriefed(part.turn_id, part.agent, number, Content(text), subtask)
                _append(tx, turn, [NewEvent(key, briefed, part.turn_id)], now)
            return rounds

        return await self._ledger.write(body)

    async def plan(self, part: Part, effect_id: str) -> tuple[Subtask, ...]:
        """Make a plan of a planner's answer and record it. `part` is the Coordinator. Raises TurnClaimed."""
        request = await self._request(part)
        now = self._clock.now()

        def body(tx: LedgerTx) -> tuple[Subtask, ...]:
            turn = require_claim(tx, part.turn_id, part.claim)
            team = _read(tx, turn)
            known = next((plan for plan in team.plans(part.agent) if plan.effect_id == effect_id), None)
            if known is not None:
                return known.subtasks
            answer = next(
                event.message.text
                for event in team.events
                if isinstance(event, ModelCalled) and event.effect_id == effect_id
            )
            goal = _goal(team, part.agent, request)
            made = planning.read_plan(answer, goal, frozenset(_tools(team, part.agent)))
            shift = sum(len(plan.subtasks) for plan in team.plans(part.agent))
            subtasks = tuple(_shifted(subtask, shift) for subtask in made.subtasks)
            event = GoalDecomposed(part.turn_id, part.agent, effect_id, subtasks, made.notes)
            _append(tx, turn, [NewEvent(f"{effect_id}/planned", event, part.turn_id)], now)
            return subtasks

        return await self._ledger.write(body)

    async def award(
        self, part: Part, wave: int, ready: Sequence[int], busy: Sequence[str]
    ) -> list[tuple[int, AgentStarted]]:
        """Hold one round of the auction: (subtask, the part that does it), for those that somebody can do now.

        Raises TurnClaimed.
        """
        now = self._clock.now()

        def body(tx: LedgerTx) -> list[tuple[int, AgentStarted]]:
            turn = require_claim(tx, part.turn_id, part.claim)
            team = _read(tx, turn)
            plan = team.plan(part.agent)
            key = f"{plan.effect_id}/wave/{wave}"
            stored = tx.events.find(part.session_id, key)
            if stored is None:
                subtasks = [subtask for subtask in plan.subtasks if subtask.number in ready]
                seed = secrets.randbelow(2**31)
                bidders = _bidders(tx, team, turn, part.agent, frozenset(busy), now)
                awards = auction.award(part.agent, subtasks, bidders, seed)
                event: Event = SubtasksAwarded(part.turn_id, part.agent, wave, seed, awards)
                new = [NewEvent(key, event, part.turn_id)]
                for each in awards:
                    if each.agent not in team.started:
                        subtask = _subtask(team, part.agent, each.subtask)
                        started = _ephemeral(team, part.agent, each.agent, subtask)
                        team.started[each.agent] = started
                        new.append(NewEvent(started_key(part.turn_id, each.agent), started, part.turn_id))
                if awards:
                    _append(tx, turn, new, now)
            else:
                event = decode_event(stored.type, stored.version, stored.payload)
            if not isinstance(event, SubtasksAwarded):
                raise LedgerCorrupt(f"Event {key} is no award.")
            return [(each.subtask, team.started[each.agent]) for each in event.awards]

        return await self._ledger.write(body)

    async def end(self, part: Part, end: PartEnd, *, subtask: int = 0, coordinator: str = "") -> None:
        """Record how a part ended: its output, and the subtask's result. Raises TurnClaimed."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            turn = require_claim(tx, part.turn_id, part.claim)
            team = _read(tx, turn)
            code, reason = end.code, None if end.reason is None else bounded_error(end.reason)
            if subtask:
                good = end.state is TurnState.COMPLETED
                state = SubtaskState.SUCCEEDED if good else SubtaskState.FAILED
                text = Content(team.text(part.agent)[: briefs.MAX_BRIEF_CHARACTERS])
                ended = SubtaskEnded(part.turn_id, coordinator, subtask, part.agent, state, text, code, reason)
                _end_subtask(tx, turn, ended, now)
                return
            key = f"{part.turn_id}/{part.agent}/agent_ended"
            if tx.events.find(part.session_id, key) is None:
                finished = end.state is TurnState.COMPLETED
                new = agent_output(turn, turn_events(tx, turn), part.agent, finished=finished)
                event = AgentEnded(part.turn_id, part.agent, end.state, code, reason)
                _append(tx, turn, [*new, NewEvent(key, event, part.turn_id)], now)

        await self._ledger.write(body)

    async def skip(self, part: Part, subtasks: Sequence[int], reason: str) -> None:
        """Record subtasks that nobody works on, since what they depend on has no result. Raises TurnClaimed."""
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            turn = require_claim(tx, part.turn_id, part.claim)
            for number in subtasks:
                event = SubtaskEnded(
                    part.turn_id, part.agent, number, "", SubtaskState.SKIPPED, Content(""), "skipped", reason
                )
                _end_subtask(tx, turn, event, now)

        await self._ledger.write(body)

    async def _request(self, part: Part) -> str:
        turn = await self._ledger.read(lambda tx: tx.turns.get(part.turn_id))
        return await self._contents.load(turn.request.text)


def _read(tx: LedgerTx, turn: Turn) -> _Team:
    stored = tx.events.read_turn(turn.session_id, turn.turn_id, types=_TYPES)
    return _Team([decode_event(item.type, item.version, item.payload) for item in stored])


def _append(tx: LedgerTx, turn: Turn, events: list[NewEvent], at: int) -> None:
    tx.events.append(turn.session_id, StreamKind.SESSION, events, at)
    tx.notify(turn.session_id)


def _end_subtask(tx: LedgerTx, turn: Turn, event: SubtaskEnded, at: int) -> None:
    key = f"{turn.turn_id}/{event.agent}/subtask/{event.subtask}/ended"
    if tx.events.find(turn.session_id, key) is not None:
        return
    _append(tx, turn, [NewEvent(key, event, turn.turn_id)], at)
    worker = agent_id_of(event.performer)
    if worker:
        tx.worker_records.count(worker, event.state is SubtaskState.SUCCEEDED, at)


def _asked(team: _Team, agent: str, subtask: int, request: str) -> str:
    """The brief of a part: what it is given beside, or for a worker instead of, the person's request."""
    own = conversation_of(agent)
    started = team.started[own]
    if is_worker(agent):
        base = _worker_brief(team, own, subtask, request)
    else:
        results = [_handed(team, name) for name in started.depends_on]
        base = briefs.dependent_brief(results) if results else ""
    if is_planning(agent):
        workers = [(worker, _names(team.started[worker_part(own, worker)])) for worker in started.workers]
        return base + briefs.planning_brief(sorted(_tools(team, own)), workers, MAX_SUBTASKS)
    if started.role is AgentRole.COORDINATOR:
        numbers = [each.number for each in team.plan(own).subtasks]
        return base + briefs.synthesis_brief(_results(team, own, numbers))
    return base


def _worker_brief(team: _Team, worker: str, number: int, request: str) -> str:
    boss = coordinator_of(worker)
    subtask = _subtask(team, boss, number)
    return briefs.worker_brief(_goal(team, boss, request), subtask, _results(team, boss, subtask.depends_on))


def _subtask(team: _Team, coordinator: str, number: int) -> Subtask:
    for plan in team.plans(coordinator):
        for subtask in plan.subtasks:
            if subtask.number == number:
                return subtask
    raise LedgerCorrupt(f"The turn has no subtask {number} of '{coordinator}'.")


def _goal(team: _Team, coordinator: str, request: str) -> str:
    """What a Coordinator is to reach: the person's request, or the subtask that another one gave it."""
    briefed = team.brief(planning_part(coordinator)) if is_worker(coordinator) else None
    return request if briefed is None else _subtask(team, coordinator_of(coordinator), briefed.subtask).description


def _results(team: _Team, coordinator: str, numbers: Sequence[int]) -> list[briefs.Handed]:
    ends = team.ends(coordinator)
    results = []
    for number in numbers:
        end, name = ends.get(number), _subtask(team, coordinator, number).name
        if end is None:
            results.append(briefs.Handed(name, "", "it has not ended"))
        else:
            failed = "" if end.state is SubtaskState.SUCCEEDED else end.error_message or end.state.value
            results.append(briefs.Handed(name, end.output.text, failed))
    return results


def _handed(team: _Team, agent: str) -> briefs.Handed:
    """What an agent of the Session leaves to those that depend on it."""
    end = next((event for event in team.events if isinstance(event, AgentEnded) and event.agent == agent), None)
    failed = "" if end is None or end.state is TurnState.COMPLETED else end.error_message or end.state.value
    return briefs.Handed(agent, team.text(agent), failed)


def _parts(team: _Team, coordinator: str) -> list[AgentStarted]:
    """The Coordinator's own start and those of its declared workers."""
    started = team.started[coordinator]
    return [started, *(team.started[worker_part(coordinator, worker)] for worker in started.workers)]


def _tools(team: _Team, coordinator: str) -> dict[str, ToolDefinition]:
    """Every tool that the Coordinator can hand on, or one of its workers has."""
    return {tool.name: tool for started in reversed(_parts(team, coordinator)) for tool in started.tools}


def _names(started: AgentStarted) -> list[str]:
    return [tool.name for tool in started.tools]


def _shifted(subtask: Subtask, by: int) -> Subtask:
    """Numbers go on where the plan before ended."""
    depends_on = tuple(number + by for number in subtask.depends_on)
    return replace(subtask, number=subtask.number + by, depends_on=depends_on)


def _bidders(
    tx: LedgerTx, team: _Team, turn: Turn, coordinator: str, busy: frozenset[str], at: int
) -> list[auction.Bidder]:
    awarded: dict[str, int] = {}
    for event in team.events:
        for each in event.awards if isinstance(event, SubtasksAwarded) else ():
            awarded[each.worker] = awarded.get(each.worker, 0) + 1
    bidders = []
    for worker in team.started[coordinator].workers:
        part = worker_part(coordinator, worker)
        started = team.started[part]
        limited = scopes(started.budget, turn.session_id, turn.turn_id, part, at)
        left = [remaining_tokens(limits, tx.budgets.spending(scope)) for scope, limits in limited.items()]
        record = tx.worker_records.get(worker)
        bidders.append(
            auction.Bidder(
                worker=worker,
                tools=frozenset(_names(started)),
                load=awarded.get(worker, 0),
                remaining=min((each for each in left if each is not None), default=None),
                finished=record.finished,
                succeeded=record.succeeded,
                idle=part not in busy,
            )
        )
    return bidders


def _ephemeral(team: _Team, coordinator: str, part: str, subtask: Subtask) -> AgentStarted:
    """A worker with exactly the tools that the subtask needs, on the Coordinator's model."""
    known = _tools(team, coordinator)
    starts = _parts(team, coordinator)
    custom: dict[str, CustomTool] = {
        tool.name: tool for started in starts for tool in started.custom_tools if tool.name in subtask.tools
    }
    asked = {tool for started in starts for tool, choice in started.approvals.items() if choice is Approval.ASK}
    return replace(
        team.started[coordinator],
        agent=part,
        role=AgentRole.AUTONOMOUS,
        workers=(),
        depends_on=(),
        system_prompt=DEFAULT_SYSTEM_PROMPT,
        tools=tuple(known[tool] for tool in subtask.tools),
        custom_tools=tuple(custom.values()),
        approvals={tool: Approval.ASK if tool in asked else Approval.ALLOW for tool in subtask.tools},
        memory=None,
    )
