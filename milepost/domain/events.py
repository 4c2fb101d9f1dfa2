"""Everything a stream may record, one frozen dataclass per type.

`TYPE` is the public name; `VERSION` rises when a field changes meaning or shape (adding a field with a default does
not need it). Readers accept all earlier versions through `ledger.upcast`. Streams have four kinds; a type belongs to
one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from milepost.domain.approvals import DEFAULT_APPROVAL_SECONDS, ApprovalState
from milepost.domain.attachments import AttachmentScope, AttachmentState
from milepost.domain.budgets import Budget, Limits, Overflow
from milepost.domain.compaction import Boundary, ContextPolicy
from milepost.domain.consolidation import MemoryConsolidated
from milepost.domain.content import Content
from milepost.domain.effects import EffectState
from milepost.domain.environments import Consent, EnvironmentPlan, EnvironmentResult
from milepost.domain.git import GitDone
from milepost.domain.hooks import HookRule, HookVerdict, HookWhen
from milepost.domain.lives import AgentLifeChanged
from milepost.domain.memory import MemorySettings
from milepost.domain.memory_events import MEMORY_EVENTS, BlockWritten, MemoryEvent, MemoryWritten
from milepost.domain.messages import AssistantMessage, FinishReason, Sampling
from milepost.domain.prices import ModelPrices, RoutePrices
from milepost.domain.processes import PROCESS_EVENTS, ProcessEvent
from milepost.domain.providers import Route
from milepost.domain.team_events import TEAM_EVENTS, TeamEvent
from milepost.domain.teams import AgentFailure, AgentRole
from milepost.domain.tools import Approval, CustomTool, ToolDefinition
from milepost.domain.turns import TurnRequest
from milepost.domain.usage import Usage


class StreamKind(StrEnum):
    SESSION = "session"
    RUN = "run"
    ATTEMPT = "attempt"
    INSTANCE = "instance"


@dataclass(frozen=True, slots=True)
class SessionOpened:
    TYPE: ClassVar[str] = "session.opened"
    VERSION: ClassVar[int] = 1
    workspace_path: str
    title: str
    mode: str
    agents: tuple[str, ...]
    budget: Limits | None = None
    skills: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class SessionSkillsSet:
    """The skills that the Session's agents have from now on; None: each its own."""

    TYPE: ClassVar[str] = "session.skills_set"
    VERSION: ClassVar[int] = 1
    skills: tuple[str, ...] | None
    actor: str


@dataclass(frozen=True, slots=True)
class SessionClosed:
    TYPE: ClassVar[str] = "session.closed"
    VERSION: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class SessionReopened:
    TYPE: ClassVar[str] = "session.reopened"
    VERSION: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class TurnBegun:
    """The accepted request, before any provider, tool or sandbox work."""

    TYPE: ClassVar[str] = "turn.begun"
    VERSION: ClassVar[int] = 1
    turn_id: str
    number: int
    request: TurnRequest
    workflow_id: str
    idempotency_key: str | None = None
    retry_of: str | None = None


@dataclass(frozen=True, slots=True)
class AttachmentConsumed:
    """A file has become a part of the conversation with this turn's request, and stays readable whatever is removed.

    Told again by a later turn that gets it after a rewind has taken out the first one. A once-scoped file is used up.
    `text` is the snapshot of what was taken out of it.
    """

    TYPE: ClassVar[str] = "attachment.consumed"
    VERSION: ClassVar[int] = 1
    turn_id: str
    attachment_id: str
    name: str
    scope: AttachmentScope
    state: AttachmentState
    text: Content | None = None


@dataclass(frozen=True, slots=True)
class AgentStarted:
    """An agent's resolved configuration for this turn; recorded once and never re-read during the turn.

    `prices` holds what each of its `routes` costs, in their order.
    """

    TYPE: ClassVar[str] = "agent.started"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    provider: str
    model: str
    system_prompt: str
    tools: tuple[ToolDefinition, ...]
    sampling: Sampling
    max_rounds: int
    tools_unavailable: str | None = None
    approvals: dict[str, Approval] = field(default_factory=dict)
    approval_seconds: int = DEFAULT_APPROVAL_SECONDS
    fallbacks: tuple[Route, ...] = ()
    custom_tools: tuple[CustomTool, ...] = ()
    prices: tuple[RoutePrices, ...] = ()
    hooks: tuple[HookRule, ...] = ()
    budget: Budget = field(default_factory=Budget)
    role: AgentRole = AgentRole.AUTONOMOUS
    workers: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    on_failure: AgentFailure = AgentFailure.FAIL
    memory: MemorySettings | None = None
    context: ContextPolicy = field(default_factory=ContextPolicy)

    @property
    def routes(self) -> tuple[Route, ...]:
        """The agent's own route and its fallbacks, in the order in which `route` of other events counts them."""
        return (Route(self.provider, self.model), *self.fallbacks)

    def prices_of(self, route: int) -> ModelPrices | None:
        """The prices of the route with this index; None if they are unknown."""
        return self.prices[route].prices if route < len(self.prices) else None

    def window_of(self, route: int) -> int | None:
        """The context window of the route with this index, in tokens: the agent's own setting is for its own route."""
        known = self.prices[route].window if route < len(self.prices) else None
        return self.context.window or known if route == 0 else known or self.context.window


@dataclass(frozen=True, slots=True)
class ModelCalled:
    """One model call that ended: with an answer, or with the partial text a stop left.

    `route` is the route that answered: 0 the agent's own, n its n-th fallback.
    """

    TYPE: ClassVar[str] = "model.called"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    effect_id: str
    attempt: int
    round: int
    provider: str
    model: str
    message: AssistantMessage
    finish: FinishReason
    usage: Usage
    diagnostics: tuple[str, ...] = ()
    route: int = 0


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """A model call that failed for good; `usage` is what the last attempt is known to cost, `route` the one it took."""

    TYPE: ClassVar[str] = "model.failed"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    effect_id: str
    attempt: int
    error_code: str
    error_message: str
    usage: Usage
    route: int = 0


@dataclass(frozen=True, slots=True)
class ModelRetried:
    """An attempt of a model call that failed and will be, or was, made again; `usage` is what it is known to cost.

    `route` is the route it took and `next_route` the one the call goes on with (see `ModelCalled`). `final` tells that
    this call does not come back to `route`.
    """

    TYPE: ClassVar[str] = "model.retried"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    effect_id: str
    attempt: int
    error_code: str
    error_message: str
    usage: Usage
    retry_after: float | None = None
    route: int = 0
    next_route: int = 0
    final: bool = False


@dataclass(frozen=True, slots=True)
class ContextCompacted:
    """What a model gets of the conversation from model call `round` on: the newest one says all there is to know.

    Results before `clipped` are shortened; what lies before `covered` is replaced by `summary`. Boundaries count from
    this turn. `clipped_results`, `covered_turns` and `covered_rounds` (of the turn in which the boundary lies) count
    what they concern. `tokens_before` and `tokens_after` are estimates of the whole request, `window` the model's.
    `number` counts the agent's compactions of the turn. With an `effect_id` the summary was written for this one, by a
    call of which `usage` is the charge; without one it is that of an earlier compaction. `error` says why less was done
    than planned. `refused`: it was made since the provider had refused the request as too long.
    """

    TYPE: ClassVar[str] = "context.compacted"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    round: int
    number: int
    window: int
    tokens_before: int
    tokens_after: int
    clipped: Boundary | None = None
    clipped_results: int = 0
    covered: Boundary | None = None
    covered_turns: int = 0
    covered_rounds: int = 0
    summary: Content | None = None
    error: str | None = None
    effect_id: str = ""
    attempt: int = 0
    provider: str = ""
    model: str = ""
    route: int = 0
    usage: Usage = field(default_factory=Usage)
    refused: bool = False


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """A limit of which `percent` is used, or that a call would go over (100). Told once for each limit and scope.

    `scope` is call, turn, session or agent; `used` and `of` are decimal text, a cost in whole units of the currency.
    """

    TYPE: ClassVar[str] = "budget.reached"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    scope: str
    limit: str
    percent: int
    used: str
    of: str
    overflow: Overflow


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """A call waits for a person. `arguments` is a bounded preview; `expires_at` is microseconds since the epoch."""

    TYPE: ClassVar[str] = "approval.requested"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    effect_id: str
    approval_id: str
    round: int
    index: int
    call_id: str
    tool: str
    input_digest: str
    arguments: str
    truncated: bool
    expires_at: int


@dataclass(frozen=True, slots=True)
class ApprovalResolved:
    """The one end of an approval. `actor` is empty for an expiry; `rule_id` is the rule that remembers the answer."""

    TYPE: ClassVar[str] = "approval.resolved"
    VERSION: ClassVar[int] = 1
    turn_id: str
    effect_id: str
    approval_id: str
    state: ApprovalState
    actor: str
    reason: str | None = None
    rule_id: str | None = None


@dataclass(frozen=True, slots=True)
class HookDecided:
    """A hook's word about one call; it holds whenever the call comes to the hook again. `effect_id` is the hook's.

    `failed` tells that the hook gave none, and its `on_failure` decided. `arguments` are those that replace what the
    model wrote; `original_digest` is SHA-256 of a result that the model does not get.
    """

    TYPE: ClassVar[str] = "hook.decided"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    effect_id: str
    hook: str
    when: HookWhen
    round: int
    index: int
    call_id: str
    tool: str
    verdict: HookVerdict
    reason: str | None = None
    failed: bool = False
    arguments: Content | None = None
    original_digest: str | None = None


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A dispatch of a call. `sandbox` names the supervisor it was meant for (its boot); empty if that is not known."""

    TYPE: ClassVar[str] = "tool.started"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    effect_id: str
    attempt: int
    round: int
    index: int
    call_id: str
    tool: str
    sandbox: str = ""


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """The recorded result of a call. `output` is what the model gets; `detail` is structured (exit code, sizes)."""

    TYPE: ClassVar[str] = "tool.finished"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    effect_id: str
    attempt: int
    round: int
    index: int
    call_id: str
    tool: str
    state: EffectState
    output: Content
    is_error: bool
    detail: dict[str, Any]
    full_output: Content | None = None


@dataclass(frozen=True, slots=True)
class AgentOutput:
    """An agent's final text of the turn; replaces its delta log."""

    TYPE: ClassVar[str] = "agent.output"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    text: Content
    rounds: int
    usage: Usage
    partial: bool = False


@dataclass(frozen=True, slots=True)
class StopRequested:
    TYPE: ClassVar[str] = "turn.stop_requested"
    VERSION: ClassVar[int] = 1
    turn_id: str
    actor: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class EffectUncertain:
    TYPE: ClassVar[str] = "effect.uncertain"
    VERSION: ClassVar[int] = 1
    turn_id: str
    effect_id: str
    operation: str
    reason: str


@dataclass(frozen=True, slots=True)
class EffectReconciled:
    """What is known later about an uncertain effect. Refers to the turn, never changes its state.

    `resolution` is a `Resolution`, `result` the text of a call that was applied.
    """

    TYPE: ClassVar[str] = "effect.reconciled"
    VERSION: ClassVar[int] = 1
    turn_id: str
    effect_id: str
    resolution: str
    actor: str
    reason: str | None = None
    evidence: str | None = None
    result: Content | None = None


@dataclass(frozen=True, slots=True)
class TurnCompleted:
    TYPE: ClassVar[str] = "turn.completed"
    VERSION: ClassVar[int] = 1
    turn_id: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class TurnFailed:
    TYPE: ClassVar[str] = "turn.failed"
    VERSION: ClassVar[int] = 1
    turn_id: str
    usage: Usage
    error_code: str
    error_message: str


@dataclass(frozen=True, slots=True)
class TurnStopped:
    TYPE: ClassVar[str] = "turn.stopped"
    VERSION: ClassVar[int] = 1
    turn_id: str
    usage: Usage
    reason: str


@dataclass(frozen=True, slots=True)
class TurnInterrupted:
    TYPE: ClassVar[str] = "turn.interrupted"
    VERSION: ClassVar[int] = 1
    turn_id: str
    usage: Usage
    reason: str


@dataclass(frozen=True, slots=True)
class SessionRewound:
    """Turns `to_number` + 1 to `last_number` that were live are superseded; 0 is before the first turn.

    Numbers are not used again. `turns` counts what was superseded.
    """

    TYPE: ClassVar[str] = "session.rewound"
    VERSION: ClassVar[int] = 1
    rewind_id: str
    to_number: int
    last_number: int
    turns: int
    actor: str
    reason: str | None = None
    files: bool = False


@dataclass(frozen=True, slots=True)
class SessionForked:
    """The Session's turns so far are copies of another one's, up to its turn `source_number`. It goes on from here.

    `turns` were copied, `omitted` earlier ones were not. `files`: the Workspace got the files of that point.
    """

    TYPE: ClassVar[str] = "session.forked"
    VERSION: ClassVar[int] = 1
    source_session: str
    source_number: int
    turns: int
    omitted: int
    files: bool
    actor: str


@dataclass(frozen=True, slots=True)
class WorkspaceSnapshotted:
    """The state of the Workspace's files around a call that may change them; see docs/adr on snapshots.

    `moment` is `before` or `after` the call. A turn's first call has a `before`, a later one only if the state is not
    the one recorded last. It names that one (`previous`) and the turn it belongs to; a difference was made by somebody
    else. `tree` is None if no snapshot could be taken: `error` says why. `omitted` are files no snapshot has.
    """

    TYPE: ClassVar[str] = "workspace.snapshotted"
    VERSION: ClassVar[int] = 1
    turn_id: str
    effect_id: str
    moment: str
    tree: str | None
    previous: str | None = None
    previous_turn: str | None = None
    omitted: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceRestored:
    """Files were put back after a rewind, or into a fork's folder. `operation_id` is the rewind's id or the Session's.

    `archived` is the state before, `tree` the one after. `kept` are files that somebody changed meanwhile, which stay;
    `failed` those that could not be written.
    """

    TYPE: ClassVar[str] = "workspace.restored"
    VERSION: ClassVar[int] = 1
    operation_id: str
    archived: str | None
    tree: str
    changed: int
    kept: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EnvironmentProposed:
    """A generation began, and a person is asked about its plan. `actor` is who wanted it."""

    TYPE: ClassVar[str] = "environment.proposed"
    VERSION: ClassVar[int] = 1
    generation: int
    plan: EnvironmentPlan
    actor: str


@dataclass(frozen=True, slots=True)
class EnvironmentReviewed:
    """The exact plan that was decided about, and how."""

    TYPE: ClassVar[str] = "environment.reviewed"
    VERSION: ClassVar[int] = 1
    generation: int
    plan: EnvironmentPlan
    consent: Consent


@dataclass(frozen=True, slots=True)
class EnvironmentPreparing:
    """`command` is the approved one that will be run, None if there is none. `actor` is who wanted it."""

    TYPE: ClassVar[str] = "environment.preparing"
    VERSION: ClassVar[int] = 1
    generation: int
    image: str | None
    command: str | None
    actor: str
    workflow_id: str


@dataclass(frozen=True, slots=True)
class EnvironmentOutput:
    """A piece of what a setup command puts out while it runs; the whole is in the result of its end.

    `number` counts the pieces of a generation from 0, `left_out` the bytes before this piece that none shows. Up to the
    end of this piece there were `stdout_bytes` and `stderr_bytes` of each stream.
    """

    TYPE: ClassVar[str] = "environment.output"
    VERSION: ClassVar[int] = 1
    generation: int
    number: int
    text: str
    left_out: int
    stdout_bytes: int
    stderr_bytes: int


@dataclass(frozen=True, slots=True)
class EnvironmentReady:
    """What needs the sandbox works from here on."""

    TYPE: ClassVar[str] = "environment.ready"
    VERSION: ClassVar[int] = 1
    generation: int
    image: str | None
    command: str | None
    result: EnvironmentResult


@dataclass(frozen=True, slots=True)
class EnvironmentFailed:
    TYPE: ClassVar[str] = "environment.failed"
    VERSION: ClassVar[int] = 1
    generation: int
    image: str | None
    command: str | None
    result: EnvironmentResult


@dataclass(frozen=True, slots=True)
class ImportCompleted:
    """The last event of an import: what the Session was made of. The events before it are as old as they say.

    `format` is `milepost.session` or `transcript`; `digest` is the SHA-256 that makes importing it again do nothing.
    `interrupted` counts turns that had no end.
    """

    TYPE: ClassVar[str] = "import.completed"
    VERSION: ClassVar[int] = 1
    format: str
    digest: str
    turns: int
    interrupted: int
    source_session_id: str | None = None
    source_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunStarted:
    """First event of a `run` stream (Automations)."""

    TYPE: ClassVar[str] = "run.started"
    VERSION: ClassVar[int] = 1
    run_id: str
    automation: str
    inputs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunEnded:
    TYPE: ClassVar[str] = "run.ended"
    VERSION: ClassVar[int] = 1
    run_id: str
    state: str


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """First event of an `attempt` stream."""

    TYPE: ClassVar[str] = "attempt.started"
    VERSION: ClassVar[int] = 1
    attempt_id: str
    request: Content
    ways: int


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    TYPE: ClassVar[str] = "attempt.ended"
    VERSION: ClassVar[int] = 1
    attempt_id: str
    state: str


@dataclass(frozen=True, slots=True)
class InstanceStarted:
    TYPE: ClassVar[str] = "instance.started"
    VERSION: ClassVar[int] = 1
    release: str
    roles: tuple[str, ...]


Event = (
    SessionOpened
    | SessionSkillsSet
    | SessionClosed
    | SessionReopened
    | TurnBegun
    | AttachmentConsumed
    | AgentStarted
    | ModelCalled
    | ModelRetried
    | ModelFailed
    | ContextCompacted
    | BudgetReached
    | ApprovalRequested
    | ApprovalResolved
    | HookDecided
    | ToolStarted
    | ToolFinished
    | AgentOutput
    | StopRequested
    | EffectUncertain
    | EffectReconciled
    | TurnCompleted
    | TurnFailed
    | TurnStopped
    | TurnInterrupted
    | SessionRewound
    | SessionForked
    | WorkspaceSnapshotted
    | WorkspaceRestored
    | EnvironmentProposed
    | EnvironmentReviewed
    | EnvironmentPreparing
    | EnvironmentOutput
    | EnvironmentReady
    | EnvironmentFailed
    | ImportCompleted
    | RunStarted
    | RunEnded
    | AttemptStarted
    | AttemptEnded
    | InstanceStarted
    | AgentLifeChanged
    | MemoryConsolidated
    | MemoryEvent
    | TeamEvent
    | ProcessEvent
    | GitDone
)

SESSION_EVENTS: tuple[type[Event], ...] = (
    SessionOpened,
    SessionSkillsSet,
    SessionClosed,
    SessionReopened,
    TurnBegun,
    AttachmentConsumed,
    AgentStarted,
    ModelCalled,
    ModelRetried,
    ModelFailed,
    ContextCompacted,
    BudgetReached,
    ApprovalRequested,
    ApprovalResolved,
    HookDecided,
    ToolStarted,
    ToolFinished,
    AgentOutput,
    StopRequested,
    EffectUncertain,
    EffectReconciled,
    TurnCompleted,
    TurnFailed,
    TurnStopped,
    TurnInterrupted,
    SessionRewound,
    SessionForked,
    WorkspaceSnapshotted,
    WorkspaceRestored,
    EnvironmentProposed,
    EnvironmentReviewed,
    EnvironmentPreparing,
    EnvironmentOutput,
    EnvironmentReady,
    EnvironmentFailed,
    ImportCompleted,
    *MEMORY_EVENTS,
    MemoryConsolidated,
    *TEAM_EVENTS,
    *PROCESS_EVENTS,
    GitDone,
)
EVENTS_BY_KIND: dict[StreamKind, tuple[type[Event], ...]] = {
    StreamKind.SESSION: SESSION_EVENTS,
    StreamKind.RUN: (RunStarted, RunEnded),
    StreamKind.ATTEMPT: (AttemptStarted, AttemptEnded),
    StreamKind.INSTANCE: (InstanceStarted, AgentLifeChanged),
}
EVENT_TYPES: dict[str, type[Event]] = {cls.TYPE: cls for kinds in EVENTS_BY_KIND.values() for cls in kinds}

TERMINAL_TURN_EVENTS: tuple[type[Event], ...] = (TurnCompleted, TurnFailed, TurnStopped, TurnInterrupted)

LATE_EVENTS: tuple[type[Event], ...] = (
    EffectReconciled,
    MemoryWritten,
    BlockWritten,
    MemoryConsolidated,
    BudgetReached,
)
"""May follow a turn's terminal event: facts that arrive late. Every other event of an ended turn is refused."""
