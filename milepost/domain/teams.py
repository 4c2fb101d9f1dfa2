"""Agents that work together: roles, who works for whom, and what a Coordinator plans. Values only.

Within a turn an agent's part has a name of its own. An agent that the Session names keeps its id. A Coordinator's
planning is `{agent}:plan`, a declared worker's part is `{coordinator}/{worker}`, and that of an ephemeral worker
`{coordinator}/+{subtask}`; ids of agents contain neither of these characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_TEAM_DEPTH = 3
"""Coordinators above a worker, at most."""

MAX_TEAM_AGENTS = 64
"""Parts of one turn that are known at its start."""

MAX_SUBTASKS = 32
"""A plan with more is not carried out as it is."""

MAX_NAME_CHARACTERS = 80
MAX_DESCRIPTION_CHARACTERS = 8_000

_PLAN = ":plan"
_WORKER = "/"
_EPHEMERAL = "+"


class AgentRole(StrEnum):
    """`autonomous` works itself; a `coordinator` plans, has others work, and puts the results together."""

    AUTONOMOUS = "autonomous"
    COORDINATOR = "coordinator"


class AgentFailure(StrEnum):
    """What an agent's failure means for a turn of several: it fails, or the others go on without that part."""

    FAIL = "fail"
    CONTINUE = "continue"


class SubtaskState(StrEnum):
    """`skipped`: something that it depends on has no result."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Subtask:
    """A part of a goal. `number` counts from 1; `depends_on` are numbers; `tools` are those it needs."""

    number: int
    name: str
    description: str
    tools: tuple[str, ...] = ()
    depends_on: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bid:
    """What a worker offers for a subtask, in millionths; 0: it cannot do it. `load` counts subtasks of this turn."""

    worker: str
    millionths: int
    load: int


@dataclass(frozen=True, slots=True)
class Award:
    """Who does a subtask, and what was bid. `agent` is the worker's part of the turn; `worker` is its id, or empty for
    an ephemeral one. `tied` are the workers that the seed decided between."""

    subtask: int
    agent: str
    worker: str
    bids: tuple[Bid, ...]
    tied: tuple[str, ...] = ()


def planning_part(agent: str) -> str:
    """The Coordinator's planning."""
    return f"{agent}{_PLAN}"


def worker_part(coordinator: str, worker: str) -> str:
    """What a declared worker does for this Coordinator."""
    return f"{coordinator}{_WORKER}{worker}"


def ephemeral_part(coordinator: str, subtask: int) -> str:
    """A worker that exists for one subtask and leaves no memory."""
    return f"{coordinator}{_WORKER}{_EPHEMERAL}{subtask}"


def is_planning(part: str) -> bool:
    """Whether a part is a Coordinator's planning."""
    return part.endswith(_PLAN)


def is_worker(part: str) -> bool:
    """Whether a part is given subtasks instead of what the person asked."""
    return _WORKER in part


def is_ephemeral(part: str) -> bool:
    """Whether a part belongs to a worker that exists for one subtask."""
    return part.rpartition(_WORKER)[2].startswith(_EPHEMERAL)


def conversation_of(part: str) -> str:
    """The part whose earlier turns this one continues: planning sees what its Coordinator said."""
    return part.removesuffix(_PLAN)


def agent_id_of(part: str) -> str:
    """The configured agent of a part; empty for an ephemeral worker."""
    last = conversation_of(part).rpartition(_WORKER)[2]
    return "" if last.startswith(_EPHEMERAL) else last


def coordinator_of(part: str) -> str:
    """The Coordinator that a worker's part works for."""
    return conversation_of(part).rpartition(_WORKER)[0]


def budget_owner(part: str) -> str:
    """The configured agent that a part's use counts for: an ephemeral worker's is its Coordinator's."""
    while is_ephemeral(part):
        part = coordinator_of(part)
    return agent_id_of(part)
