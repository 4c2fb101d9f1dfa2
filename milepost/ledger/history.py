"""The History projection: what a person reads of a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from milepost.domain.content import Content
from milepost.domain.effects import EffectState, Resolution
from milepost.domain.events import (
    AgentOutput,
    AgentStarted,
    ApprovalRequested,
    BudgetReached,
    ContextCompacted,
    EffectReconciled,
    Event,
    HookDecided,
    ModelCalled,
    ModelFailed,
    ModelRetried,
    ToolFinished,
    ToolStarted,
)
from milepost.domain.memory_events import MemoryRecalled, MemoryWritten
from milepost.domain.team_events import AgentEnded
from milepost.domain.teams import is_planning, is_worker
from milepost.domain.turns import Turn
from milepost.domain.usage import Usage
from milepost.ledger.compacted import compaction_note
from milepost.ledger.plans import PlanEntry, Plans, team_remarks

CARD_PREVIEW_CHARACTERS = 2_000
NOTE_CHARACTERS = 300
_MADE = (ModelCalled, ModelRetried, ModelFailed, ContextCompacted)


@dataclass(frozen=True, slots=True)
class ToolCard:
    """One tool call. `preview` is at most 2,000 characters; the whole text lies behind the effect id."""

    effect_id: str
    agent: str
    tool: str
    call_id: str
    state: EffectState
    is_error: bool
    arguments: str
    preview: str
    truncated: bool


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """One agent's part of a turn. `partial` tells that the text was cut short by a stop, failure or interruption.

    `rounds` counts the model's answers, `calls` every attempt to get one, also those that failed or were lost.
    `reminder` is what the agent was reminded of; `written`: the turn is in its memory.
    """

    agent: str
    provider: str
    model: str
    output: Content
    partial: bool
    rounds: int
    calls: int
    retries: int
    usage: Usage
    notes: tuple[str, ...]
    compactions: tuple[ContextCompacted, ...] = ()
    reminder: MemoryRecalled | None = None
    written: bool = False


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One turn of History."""

    turn: Turn
    agents: tuple[AgentEntry, ...]
    tools: tuple[ToolCard, ...]
    plans: tuple[PlanEntry, ...] = ()

    @property
    def output(self) -> Content:
        """The turn's answer: the output of the last agent that has one. Workers answer to their Coordinator."""
        for agent in reversed(self.agents):
            if (agent.output.text or agent.output.blob) and not (is_worker(agent.agent) or is_planning(agent.agent)):
                return agent.output
        return Content("")


class _Agent:
    def __init__(self, started: AgentStarted) -> None:
        self.started = started
        self.output: AgentOutput | None = None
        self.last: ModelCalled | None = None
        self.rounds = 0
        self.attempts: set[tuple[str, int]] = set()
        self.retries = 0
        self.usage = Usage()
        self.compactions: list[ContextCompacted] = []
        self.reminder: MemoryRecalled | None = None
        self.written = False
        self.notes: list[str] = [started.tools_unavailable] if started.tools_unavailable else []

    def entry(self, ended: bool) -> AgentEntry:
        text = self.output.text if self.output else Content(self.last.message.text if self.last else "")
        return AgentEntry(
            agent=self.started.agent,
            provider=self.started.provider,
            model=self.started.model,
            output=text,
            partial=self.output.partial if self.output else ended,
            rounds=self.rounds,
            calls=len(self.attempts),
            retries=self.retries,
            usage=self.usage,
            notes=tuple(self.notes),
            compactions=tuple(self.compactions),
            reminder=self.reminder,
            written=self.written,
        )


def history_entry(turn: Turn, events: Iterable[Event]) -> HistoryEntry:
    """Fold a turn's events (ascending) into its History entry."""
    agents: dict[str, _Agent] = {}
    cards: dict[tuple[str, int, int], ToolCard] = {}
    arguments: dict[tuple[str, int, int], str] = {}
    reconciled: dict[str, EffectReconciled] = {}
    plans = Plans()
    for event in events:
        plans.add(event)
        if isinstance(event, _MADE) and event.effect_id and event.agent in agents:
            # A call that fails in the middle of its answer has two events.
            agents[event.agent].attempts.add((event.effect_id, event.attempt))
        match event:
            case AgentStarted():
                agents[event.agent] = _Agent(event)
            case ModelCalled() if event.agent in agents:
                agent = agents[event.agent]
                agent.rounds += 1
                agent.last = event
                agent.usage += event.usage
                agent.notes.extend(event.diagnostics)
                for index, call in enumerate(event.message.calls):
                    arguments[event.agent, event.round, index] = call.arguments.text
            case HookDecided() if event.arguments is not None:
                arguments[event.agent, event.round, event.index] = event.arguments.text
            case ModelRetried() if event.agent in agents:
                agents[event.agent].retries += 1
                agents[event.agent].notes.extend(_switched(agents[event.agent].started, event))
                agents[event.agent].usage += event.usage
            case BudgetReached() if event.agent in agents:
                agents[event.agent].notes.append(_budget_note(event))
            case ContextCompacted() if event.agent in agents:
                agents[event.agent].compactions.append(event)
                agents[event.agent].notes.append(compaction_note(event))
                agents[event.agent].usage += event.usage
            case MemoryRecalled() if event.agent in agents:
                agents[event.agent].reminder = event
                agents[event.agent].notes.extend(event.notes)
            case MemoryWritten() if event.agent in agents:
                agents[event.agent].written = True
            case ModelFailed() if event.agent in agents:
                agents[event.agent].usage += event.usage
            case ApprovalRequested() | ToolStarted() | ToolFinished():
                key = (event.agent, event.round, event.index)
                cards[key] = _card(event, arguments.get(key, ""))
            case EffectReconciled():
                reconciled[event.effect_id] = event
            case AgentOutput() if event.agent in agents:
                agents[event.agent].output = event
            case AgentEnded() if event.agent in agents:
                agents[event.agent].notes.extend(team_remarks(event))
            case _:
                pass
    # Calls that run together start in any order; a person reads them in the order in which they were asked for.
    order = {agent: position for position, agent in enumerate(agents)}
    places = sorted(cards, key=lambda place: (order.get(place[0], len(order)), *place))
    return HistoryEntry(
        turn=turn,
        agents=tuple(agent.entry(turn.state.terminal) for agent in agents.values()),
        tools=tuple(_reconciled(cards[place], reconciled) for place in places),
        plans=plans.entries(ended=turn.state.terminal),
    )


def _switched(started: AgentStarted, event: ModelRetried) -> list[str]:
    """A switch of routes, in words."""
    if event.next_route == event.route:
        return []
    before, after = (f"{started.routes[n].provider}/{started.routes[n].model}" for n in (event.route, event.next_route))
    why = event.error_message[:NOTE_CHARACTERS]
    return [f"{before} failed ({event.error_code}: {why}); the call went on with {after}."]


def _budget_note(event: BudgetReached) -> str:
    what = event.limit.replace("_", " ")
    return f"Budget of the {event.scope}: {event.percent} % of its {what} reached ({event.used} of {event.of})."


def _reconciled(card: ToolCard, found: Mapping[str, EffectReconciled]) -> ToolCard:
    """The card of an uncertain call as it is known to have ended since; what the model was told stays."""
    event = found.get(card.effect_id)
    if event is None or card.state is not EffectState.UNCERTAIN:
        return card
    failed = event.resolution in (Resolution.NOT_APPLIED, Resolution.COMPENSATED)
    return replace(card, state=EffectState.FAILED if failed else EffectState.SUCCEEDED)


def _card(event: ApprovalRequested | ToolStarted | ToolFinished, arguments: str) -> ToolCard:
    unfinished = EffectState.AWAITING_APPROVAL if isinstance(event, ApprovalRequested) else EffectState.DISPATCHED
    finished = isinstance(event, ToolFinished)
    output = event.output.text if isinstance(event, ToolFinished) else ""
    return ToolCard(
        effect_id=event.effect_id,
        agent=event.agent,
        tool=event.tool,
        call_id=event.call_id,
        state=event.state if isinstance(event, ToolFinished) else unfinished,
        is_error=isinstance(event, ToolFinished) and event.is_error,
        arguments=arguments[:CARD_PREVIEW_CHARACTERS],
        preview=output[:CARD_PREVIEW_CHARACTERS],
        truncated=finished and (len(output) > CARD_PREVIEW_CHARACTERS or event_has_blob(event)),
    )


def event_has_blob(event: ApprovalRequested | ToolStarted | ToolFinished) -> bool:
    """Whether the event's whole output lies outside it."""
    return isinstance(event, ToolFinished) and (event.output.blob is not None or event.full_output is not None)
