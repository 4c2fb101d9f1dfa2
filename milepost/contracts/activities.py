"""One typed contract per activity: name, parameters, result, time limits, retry. Bulk data stays in the ledger.

All parameters and results are small (ids, digests, counts, short texts): no workflow event may exceed 64 KiB.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Generic, TypeVar

from milepost.domain.effects import EffectState
from milepost.domain.messages import FinishReason
from milepost.domain.teams import AgentFailure, AgentRole
from milepost.domain.tools import Parallel
from milepost.domain.turns import TurnState
from milepost.engine.turn import LoopGuard

P = TypeVar("P")
R = TypeVar("R")

MAX_BOUNDARY_TEXT = 2_000
"""Characters of an error or reason text that may cross the boundary; longer ones are cut and kept whole elsewhere."""

PAYLOAD_UNDECODABLE = "payload_undecodable"
"""Type of the failure of a worker that cannot decrypt what it was given; it has not begun the work."""


def boundary_text(text: str, limit: int = MAX_BOUNDARY_TEXT) -> str:
    """At most `limit` characters, fit for the wire: lone surrogates, which UTF-8 does not have, become '?'."""
    return text[:limit].encode("utf-8", "replace").decode("utf-8")


def tool_label(name: str) -> str:
    """A tool's name in at most 64 printable ASCII characters, for display; names come from models."""
    return "".join(character if " " <= character <= "~" else "?" for character in name[:64])


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Temporal's retry policy in plain values. `maximum_attempts` counts the first try."""

    maximum_attempts: int
    initial: timedelta = timedelta(seconds=1)
    maximum: timedelta = timedelta(seconds=30)
    backoff: float = 2.0


@dataclass(frozen=True, slots=True)
class ActivityContract(Generic[P, R]):
    """How an activity is called. `local` runs it inside the workflow task (short ledger work only)."""

    name: str
    params: type[P]
    result: type[R]
    start_to_close: timedelta
    retry: RetryRule
    heartbeat: timedelta | None = None
    schedule_to_start: timedelta | None = None
    local: bool = False


@dataclass(frozen=True, slots=True)
class TurnResult:
    """Result of `SessionTurnWorkflow`, for the Temporal UI; readers use the ledger."""

    turn_id: str
    state: TurnState
    rounds: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class PrepareParams:
    turn_id: str
    session_id: str
    claim: str


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """A part of the turn (`domain.teams`): what the workflow needs to know of it."""

    agent: str
    max_rounds: int
    role: AgentRole = AgentRole.AUTONOMOUS
    depends_on: tuple[str, ...] = ()
    on_failure: AgentFailure = AgentFailure.FAIL


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """`failure` is set when the turn cannot run (unknown agent, missing key): it is to be finished as failed.

    `team`: several parts may be at work at the same time. Workers of Coordinators are not among the `agents`.
    """

    agents: tuple[AgentPlan, ...]
    models_queue: str
    sandbox_queue: str
    failure_code: str | None = None
    failure: str | None = None
    team: bool = False


@dataclass(frozen=True, slots=True)
class LoopState:
    """Handover of a turn that continues as new: counters and digests only, well under 1 KiB.

    `before` counts model calls that the agent made in this turn for an earlier subtask.
    """

    agent_index: int = 0
    rounds_done: int = 0
    total_rounds: int = 0
    guard: LoopGuard = field(default_factory=LoopGuard)
    before: int = 0


@dataclass(frozen=True, slots=True)
class TurnInput:
    """Input of `SessionTurnWorkflow`.

    `claim` and `resume` are empty at the start; a continued run gets the claim of the run that prepared the turn, so
    that a Reset (which has another run id and no claim) is refused.
    """

    turn_id: str
    session_id: str
    instance_id: str
    claim: str | None = None
    prepared: PrepareResult | None = None
    resume: LoopState | None = None


@dataclass(frozen=True, slots=True)
class CallModelParams:
    """`claim` is the run id that prepared the turn; `round` counts this agent's model calls from 1."""

    turn_id: str
    session_id: str
    claim: str
    agent: str
    round: int


class ModelOutcome(StrEnum):
    ANSWERED = "answered"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call the model asked for; it lies in the ledger, in the model's event, at `index`.

    `tool` is a `tool_label`: names and ids that providers send may be long, and 128 of them add up. A call that is
    not `sandboxed` runs where model calls do, since it needs the network and secrets, and no container.
    """

    index: int
    tool: str
    parallel: Parallel
    input_digest: str
    malformed: bool = False
    fault: str = ""
    timeout_seconds: float = 180.0
    sandboxed: bool = True


@dataclass(frozen=True, slots=True)
class CallModelResult:
    """`text_digest` is "" when the answer has no text."""

    outcome: ModelOutcome
    effect_id: str
    finish: FinishReason | None = None
    calls: tuple[PlannedCall, ...] = ()
    text_digest: str = ""
    error_code: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunToolParams:
    """`tool` is a `tool_label`. `team`: other agents may use the same sandbox at the same time."""

    turn_id: str
    session_id: str
    claim: str
    agent: str
    round: int
    index: int
    tool: str
    model_effect_id: str
    team: bool = False


@dataclass(frozen=True, slots=True)
class RunToolResult:
    """`stopped`: the call was cancelled because a stop was requested.

    `approval_id` is set when the call waits for a person, for at most `wait_seconds`: it is to be run again then, or
    when the answer has come. Nothing has been dispatched.
    """

    effect_id: str
    state: EffectState
    result_digest: str
    is_error: bool
    stopped: bool = False
    approval_id: str | None = None
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EndCallsParams:
    """The turn whose calls nobody attends to any more."""

    turn_id: str
    session_id: str
    claim: str


@dataclass(frozen=True, slots=True)
class EndCallsResult:
    """How many calls were ended or found to have ended."""

    ended: int


@dataclass(frozen=True, slots=True)
class PartParams:
    """A part of a turn of several agents, and the subtask it works on (0: none) for `coordinator`."""

    turn_id: str
    session_id: str
    claim: str
    agent: str
    subtask: int = 0
    coordinator: str = ""


@dataclass(frozen=True, slots=True)
class BriefResult:
    """How many model calls the part has made in this turn."""

    before: int


@dataclass(frozen=True, slots=True)
class EndPartParams:
    """How a part ended. A `subtasks` list without a state: these are skipped."""

    part: PartParams
    state: TurnState | None = None
    reason_code: str | None = None
    reason: str | None = None
    subtasks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EndPartResult:
    pass


@dataclass(frozen=True, slots=True)
class PlanParams:
    """`effect_id` is the model call whose answer holds the plan."""

    part: PartParams
    effect_id: str


@dataclass(frozen=True, slots=True)
class PlannedSubtask:
    """A subtask's place; what it is about lies in the ledger."""

    number: int
    depends_on: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanResult:
    subtasks: tuple[PlannedSubtask, ...]


@dataclass(frozen=True, slots=True)
class AwardParams:
    """`ready` can be worked on now; `busy` are parts that are at work."""

    part: PartParams
    wave: int
    ready: tuple[int, ...]
    busy: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AwardedSubtask:
    number: int
    plan: AgentPlan


@dataclass(frozen=True, slots=True)
class AwardResult:
    """Who does what; subtasks that only busy workers can do are not among them."""

    awards: tuple[AwardedSubtask, ...]


@dataclass(frozen=True, slots=True)
class PartInput:
    """Input of the child workflow of one part. `resume` is set in a run that continues another."""

    turn: TurnInput
    claim: str
    prepared: PrepareResult
    plan: AgentPlan
    subtask: int = 0
    coordinator: str = ""
    resume: LoopState | None = None


@dataclass(frozen=True, slots=True)
class PartResult:
    """How a part ended; `left_queue` is set when a call of it may be running there."""

    agent: str
    state: TurnState
    rounds: int
    reason_code: str | None = None
    reason: str | None = None
    left_queue: str | None = None


@dataclass(frozen=True, slots=True)
class FinishParams:
    """`state` is what the workflow concluded; a requested stop wins over `completed` only if work was cut short."""

    turn_id: str
    session_id: str
    claim: str
    state: TurnState
    rounds: int
    reason_code: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class FinishResult:
    state: TurnState


LEDGER_RETRY = RetryRule(maximum_attempts=0, initial=timedelta(milliseconds=200), maximum=timedelta(seconds=10))
"""Of short, idempotent ledger work: until the ledger answers."""


def ledger_step(name: str, params: type[P], result: type[R]) -> ActivityContract[P, R]:
    """The contract of short ledger work, which runs inside the workflow task."""
    return ActivityContract(name, params, result, start_to_close=timedelta(seconds=30), retry=LEDGER_RETRY, local=True)


PREPARE_TURN = ledger_step("prepare_turn", PrepareParams, PrepareResult)

CALL_MODEL = ActivityContract(
    "call_model",
    CallModelParams,
    CallModelResult,
    # The longest call, and the longest waits: for others of its budget, and for the ledger before and after it.
    start_to_close=timedelta(minutes=60),
    heartbeat=timedelta(seconds=6),
    retry=RetryRule(maximum_attempts=6),
)

RUN_TOOL = ActivityContract(
    "run_tool",
    RunToolParams,
    RunToolResult,
    start_to_close=timedelta(hours=2),
    heartbeat=timedelta(seconds=6),
    retry=RetryRule(maximum_attempts=20, maximum=timedelta(seconds=10)),
)

END_CALLS = ActivityContract(
    "end_calls",
    EndCallsParams,
    EndCallsResult,
    start_to_close=timedelta(seconds=60),
    # The host that has the container may be gone for good: then the turn must end all the same.
    schedule_to_start=timedelta(seconds=20),
    heartbeat=timedelta(seconds=6),
    retry=RetryRule(maximum_attempts=2),
)

FINISH_TURN = ledger_step("finish_turn", FinishParams, FinishResult)

BRIEF_PART = ledger_step("brief_part", PartParams, BriefResult)

PLAN_SUBTASKS = ledger_step("plan_subtasks", PlanParams, PlanResult)

AWARD_SUBTASKS = ledger_step("award_subtasks", AwardParams, AwardResult)

END_PART = ledger_step("end_part", EndPartParams, EndPartResult)

HOST_SCHEDULE_TO_START = timedelta(minutes=5)
"""How long a tool call waits for a worker of the host that has the Session's container: longer than a host takes to
start again. After that the host is taken for lost, and the turn fails. Queues that any process serves have no limit."""

CONTRACTS = (
    PREPARE_TURN,
    CALL_MODEL,
    RUN_TOOL,
    END_CALLS,
    FINISH_TURN,
    BRIEF_PART,
    PLAN_SUBTASKS,
    AWARD_SUBTASKS,
    END_PART,
)


@dataclass(frozen=True, slots=True)
class FindIdleParams:
    """Nothing: what is idle is asked of the ledger."""


@dataclass(frozen=True, slots=True)
class IdleAgent:
    session_id: str
    agent: str


@dataclass(frozen=True, slots=True)
class FindIdleResult:
    """Agents whose memory may be consolidated now, and the queue of model calls."""

    agents: tuple[IdleAgent, ...]
    models_queue: str


@dataclass(frozen=True, slots=True)
class ConsolidateParams:
    """`key` names the pass: the same agent in the same pass is the same consolidation."""

    session_id: str
    agent: str
    key: str


@dataclass(frozen=True, slots=True)
class ConsolidateResult:
    """`consolidation_id` is empty where there was nothing to do (any more)."""

    consolidation_id: str = ""
    state: str = ""
    promotions: int = 0


@dataclass(frozen=True, slots=True)
class ConsolidationResult:
    """Result of `ConsolidationWorkflow`, for the Temporal UI."""

    asked: int
    promotions: int
    failed: int


FIND_IDLE = ActivityContract(
    "find_idle_agents",
    FindIdleParams,
    FindIdleResult,
    start_to_close=timedelta(minutes=1),
    retry=RetryRule(maximum_attempts=5),
)
CONSOLIDATE = ActivityContract(
    "consolidate_memory",
    ConsolidateParams,
    ConsolidateResult,
    start_to_close=timedelta(minutes=15),
    heartbeat=timedelta(seconds=6),
    retry=RetryRule(maximum_attempts=3, initial=timedelta(seconds=5)),
)
