"""What a Session's stream records of agents that work together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from milepost.domain.content import Content
from milepost.domain.teams import Award, Subtask, SubtaskState
from milepost.domain.turns import TurnState


@dataclass(frozen=True, slots=True)
class AgentBriefed:
    """What a part of the turn is asked, where that is not simply what the person asked. `subtask` 0: none."""

    TYPE: ClassVar[str] = "agent.briefed"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    number: int
    text: Content
    subtask: int = 0


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """How one agent's part of a turn of several ended. The turn itself goes on."""

    TYPE: ClassVar[str] = "agent.ended"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    state: TurnState
    error_code: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class GoalDecomposed:
    """A Coordinator's plan as it is carried out. `notes` say what of the model's plan could not be taken."""

    TYPE: ClassVar[str] = "coordination.planned"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    effect_id: str
    subtasks: tuple[Subtask, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SubtasksAwarded:
    """One round of the auction. `seed` decided between equal bids, in the order of `awards`."""

    TYPE: ClassVar[str] = "coordination.awarded"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    wave: int
    seed: int
    awards: tuple[Award, ...]


@dataclass(frozen=True, slots=True)
class SubtaskEnded:
    """A subtask's result. `performer` is the part of the turn that worked on it, empty if none did."""

    TYPE: ClassVar[str] = "coordination.subtask_ended"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    subtask: int
    performer: str
    state: SubtaskState
    output: Content
    error_code: str | None = None
    error_message: str | None = None


TeamEvent = AgentBriefed | AgentEnded | GoalDecomposed | SubtasksAwarded | SubtaskEnded
TEAM_EVENTS: tuple[type[TeamEvent], ...] = (AgentBriefed, AgentEnded, GoalDecomposed, SubtasksAwarded, SubtaskEnded)
