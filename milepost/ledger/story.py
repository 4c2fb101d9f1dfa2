"""A Session's events as what a person reads, one after another, with little kept in memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.domain.content import Content
from milepost.domain.effects import EffectState
from milepost.domain.events import (
    AgentOutput,
    AgentStarted,
    ApprovalResolved,
    ContextCompacted,
    EffectReconciled,
    EnvironmentFailed,
    EnvironmentReady,
    EnvironmentReviewed,
    Event,
    ModelCalled,
    ModelFailed,
    ModelRetried,
    SessionClosed,
    SessionReopened,
    SessionRewound,
    ToolFinished,
    ToolStarted,
    TurnBegun,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    TurnStopped,
)
from milepost.domain.git import GitAction, GitDone
from milepost.domain.memory_events import MemoryRecalled
from milepost.domain.messages import ReasoningPart
from milepost.domain.processes import ProcessEnded, ProcessEnding, ProcessKind, ProcessStarted
from milepost.domain.team_events import AgentEnded, GoalDecomposed, SubtaskEnded, SubtasksAwarded
from milepost.domain.turns import Turn
from milepost.ledger.compacted import compaction_note
from milepost.ledger.plans import team_remarks

NO_TEXT = Content("")
SHOWN_COMMAND = 200
"""Characters of a command that is only named."""


@dataclass(frozen=True, slots=True)
class TurnOpens:
    """A turn begins; `turn` is its row as it is now."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class AgentOpens:
    agent: str
    provider: str
    model: str


@dataclass(frozen=True, slots=True)
class Reasons:
    """What a model wrote for itself: its reasoning, or a summary it goes on with (`title` says which)."""

    agent: str
    text: str
    title: str = "Reasoning"


@dataclass(frozen=True, slots=True)
class Says:
    agent: str
    text: Content
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Calls:
    """A tool call that ended, or that the turn left behind (`state` dispatched)."""

    agent: str
    tool: str
    arguments: Content
    state: EffectState
    is_error: bool
    output: Content


@dataclass(frozen=True, slots=True)
class Remarks:
    """What happened beside: retries, failures, decisions, rewinds. Between turns if `turn_id` is None."""

    turn_id: str | None
    text: str


@dataclass(frozen=True, slots=True)
class TurnCloses:
    """The turn's end. `turn` is its row as it is now, which runs on if the Session ends here."""

    turn: Turn


Block = TurnOpens | AgentOpens | Reasons | Says | Calls | Remarks | TurnCloses
_ENDS = (TurnCompleted, TurnFailed, TurnStopped, TurnInterrupted)


class Story:
    """Turns events into blocks, in order. `begin` gives the row of the turn that the next event belongs to.

    Of a turn it holds what its running calls were given and what each agent said last.
    """

    def __init__(self, *, superseded: bool) -> None:
        self._superseded = superseded
        self._turn: Turn | None = None
        self._hidden = False
        self._calls: dict[tuple[str, int, int], tuple[str, Content]] = {}
        self._said: dict[str, str] = {}

    def begin(self, turn: Turn) -> list[Block]:
        """A turn begins."""
        blocks = self.end()
        self._turn = turn
        self._hidden = turn.superseded and not self._superseded
        return blocks if self._hidden else [*blocks, TurnOpens(turn)]

    def end(self) -> list[Block]:
        """Close what is open: at the end of the Session, or of the turn."""
        turn, self._turn = self._turn, None
        left: list[Block] = [
            Calls(place[0], tool, arguments, EffectState.DISPATCHED, False, NO_TEXT)
            for place, (tool, arguments) in self._calls.items()
        ]
        self._calls.clear()
        self._said.clear()
        if turn is None or self._hidden:
            return []
        return [*left, TurnCloses(turn)]

    def add(self, event: Event) -> list[Block]:
        """What an event adds. `TurnBegun` is told by `begin`."""
        if isinstance(event, SessionRewound | SessionClosed | SessionReopened | EffectReconciled):
            return _beside(event)
        if isinstance(event, EnvironmentReviewed | EnvironmentReady | EnvironmentFailed):
            return _environment(event)
        if isinstance(event, GitDone):
            return _git(event)
        if isinstance(event, ProcessStarted | ProcessEnded):
            return _process(event)
        if isinstance(event, _ENDS):
            return self.end()
        if self._turn is None or self._hidden or isinstance(event, TurnBegun):
            return []
        return self._within(event)

    def _within(self, event: Event) -> list[Block]:
        match event:
            case AgentStarted():
                return [AgentOpens(event.agent, event.provider, event.model)]
            case ModelCalled():
                return self._called(event)
            case ToolStarted():
                self._calls.setdefault((event.agent, event.round, event.index), (event.tool, NO_TEXT))
            case ToolFinished():
                _, arguments = self._calls.pop((event.agent, event.round, event.index), ("", NO_TEXT))
                return [Calls(event.agent, event.tool, arguments, event.state, event.is_error, event.output)]
            case AgentOutput() if event.text.text and event.text.text != self._said.get(event.agent):
                return [Says(event.agent, event.text, event.partial)]
            case ModelRetried():
                return [Remarks(event.turn_id, f"Model call tried again ({event.error_code}): {event.error_message}")]
            case ContextCompacted():
                return _compacted(event)
            case MemoryRecalled():
                told = [Reasons(event.agent, event.text, "Reminded of")] if event.text else []
                return [*told, *(Remarks(event.turn_id, note) for note in event.notes)]
            case ModelFailed():
                return [Remarks(event.turn_id, f"Model call failed ({event.error_code}): {event.error_message}")]
            case ApprovalResolved():
                by = f" by {event.actor}" if event.actor else ""
                why = f": {event.reason}" if event.reason else ""
                return [Remarks(event.turn_id, f"Approval {event.state.value}{by}{why}")]
            case GoalDecomposed() | SubtasksAwarded() | SubtaskEnded() | AgentEnded():
                return [Remarks(event.turn_id, line) for line in team_remarks(event)]
            case _:
                pass
        return []

    def _called(self, event: ModelCalled) -> list[Block]:
        blocks: list[Block] = []
        reasoning = "".join(part.text for part in event.message.parts if isinstance(part, ReasoningPart))
        if reasoning:
            blocks.append(Reasons(event.agent, reasoning))
        text = event.message.text
        if text:
            blocks.append(Says(event.agent, Content(text)))
            self._said[event.agent] = text
        for index, call in enumerate(event.message.calls):
            self._calls[event.agent, event.round, index] = (call.tool, call.arguments)
        return blocks


def _compacted(event: ContextCompacted) -> list[Block]:
    told = Remarks(event.turn_id, compaction_note(event))
    if not event.effect_id or event.summary is None:
        return [told]
    return [told, Reasons(event.agent, event.summary.text, "Summary")]


def _environment(event: EnvironmentReviewed | EnvironmentReady | EnvironmentFailed) -> list[Block]:
    """What was decided about an environment and how it ended; nothing of one that works without a setup command."""
    number = event.generation
    match event:
        case EnvironmentReviewed():
            verb = "agreed to" if event.consent.approved else "refused"
            what = f"`{event.plan.command}`" if event.plan.command else "the environment"
            text = f"Environment {number}: {event.consent.actor} {verb} {what}."
        case EnvironmentReady():
            if event.command is None:
                return []
            text = f"Environment {number} is ready: `{event.command}` ended with exit code {event.result.exit_code}."
        case EnvironmentFailed():
            text = f"Environment {number} could not be prepared: {event.result.error}"
    return [Remarks(None, text)]


def _process(event: ProcessStarted | ProcessEnded) -> list[Block]:
    """Who began a terminal or background command, and how it ended; not what was typed or said in it."""
    if isinstance(event, ProcessStarted):
        what = "a shell" if event.command is None else f"`{event.command[:SHOWN_COMMAND]}`"
        kind = "opened a terminal with" if event.kind is ProcessKind.TERMINAL else "started in the background"
        return [Remarks(None, f"{event.by} {kind} {what} ({event.process_id}).")]
    how = {
        ProcessEnding.EXIT: f"ended with exit code {event.exit_code}",
        ProcessEnding.ENDED: f"was ended by {event.by}",
        ProcessEnding.LIFETIME: "was ended at the end of its lifetime",
        ProcessEnding.LOST: "was lost with its sandbox",
        ProcessEnding.REFUSED: f"did not begin: {event.reason}",
    }
    return [Remarks(None, f"{event.process_id} {how[event.ended_by]}.")]


def _git(event: GitDone) -> list[Block]:
    """What a person did in the repository."""
    files = ", ".join(f"`{path}`" for path in event.paths[:10]) or f"{event.hunks} hunks"
    at = f" at {event.commit[:12]}" if event.commit else ""
    did = {
        GitAction.STAGE: f"staged {files}",
        GitAction.UNSTAGE: f"unstaged {files}",
        GitAction.DISCARD: f"discarded changes of {files} (kept as {event.operation_id})",
        GitAction.COMMIT: f"committed{at}: {(event.message or '').splitlines()[0] if event.message else ''}",
        GitAction.SWITCH: f"checked out {event.branch or 'a commit'}{at}",
        GitAction.CREATE_BRANCH: f"made the branch {event.branch}{at}",
        GitAction.DELETE_BRANCH: f"deleted the branch {event.branch}, which was{at}",
    }
    return [Remarks(None, f"{event.by} {did[event.action]}.")]


def _beside(event: SessionRewound | SessionClosed | SessionReopened | EffectReconciled) -> list[Block]:
    match event:
        case SessionRewound():
            to = f"turn {event.to_number}" if event.to_number else "before the first turn"
            why = f" ({event.reason})" if event.reason else ""
            text = f"Rewound to {to}: turns {event.to_number + 1} to {event.last_number} no longer count{why}."
        case SessionClosed():
            text = "The Session was closed."
        case SessionReopened():
            text = "The Session was opened again."
        case EffectReconciled():
            why = f": {event.reason}" if event.reason else ""
            text = f"A call whose outcome was unknown is settled ({event.resolution}){why}"
    return [Remarks(None, text)]
