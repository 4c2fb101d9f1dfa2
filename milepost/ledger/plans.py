"""What a person reads of agents that worked together: plans, who did what, how it ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.domain.events import Event
from milepost.domain.team_events import AgentEnded, GoalDecomposed, SubtaskEnded, SubtasksAwarded
from milepost.domain.teams import Award, Subtask
from milepost.domain.turns import TurnState

PREVIEW_CHARACTERS = 2_000
RUNNING, WAITING = "running", "waiting"


@dataclass(frozen=True, slots=True)
class SubtaskCard:
    """A subtask as it stands: `waiting`, `running`, or how it ended. `performer` is empty until it is awarded."""

    subtask: Subtask
    state: str
    award: Award | None
    preview: str
    truncated: bool
    error: str | None

    @property
    def performer(self) -> str:
        return self.award.agent if self.award else ""


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """A Coordinator's plan."""

    agent: str
    notes: tuple[str, ...]
    subtasks: tuple[SubtaskCard, ...]


@dataclass(slots=True)
class Plans:
    """Folds the events of one turn."""

    planned: list[GoalDecomposed] = field(default_factory=list)
    awards: dict[tuple[str, int], Award] = field(default_factory=dict)
    ends: dict[tuple[str, int], SubtaskEnded] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case GoalDecomposed():
                self.planned.append(event)
            case SubtasksAwarded():
                self.awards.update({(event.agent, award.subtask): award for award in event.awards})
            case SubtaskEnded():
                self.ends[event.agent, event.subtask] = event
            case _:
                pass

    def entries(self, *, ended: bool) -> tuple[PlanEntry, ...]:
        """The plans in the order in which they were made. In a turn that has `ended` nothing is at work any more."""
        return tuple(
            PlanEntry(plan.agent, plan.notes, tuple(self._card(plan.agent, each, ended) for each in plan.subtasks))
            for plan in self.planned
        )

    def _card(self, agent: str, subtask: Subtask, ended: bool) -> SubtaskCard:
        award, end = self.awards.get((agent, subtask.number)), self.ends.get((agent, subtask.number))
        if end is None:
            state = "unfinished" if ended else RUNNING if award else WAITING
            return SubtaskCard(subtask, state, award, "", False, None)
        text = end.output.text
        return SubtaskCard(
            subtask,
            end.state.value,
            award,
            text[:PREVIEW_CHARACTERS],
            len(text) > PREVIEW_CHARACTERS,
            end.error_message,
        )


def team_remarks(event: Event) -> list[str]:
    """What an event of a team says in one line each; nothing for other events."""
    match event:
        case GoalDecomposed():
            after = {each.number: ", ".join(str(n) for n in each.depends_on) for each in event.subtasks}
            lines = [
                f"{each.number}. {each.name}" + (f" (after {after[each.number]})" if after[each.number] else "")
                for each in event.subtasks
            ]
            return [f"{event.agent} planned: {'; '.join(lines)}", *event.notes]
        case SubtasksAwarded():
            return [f"Subtask {award.subtask} goes to {award.agent}" for award in event.awards]
        case SubtaskEnded():
            why = f": {event.error_message}" if event.error_message else ""
            return [f"Subtask {event.subtask} of {event.agent} {event.state.value}{why}"]
        case AgentEnded() if event.state is not TurnState.COMPLETED:
            return [f"Agent {event.agent} {event.state.value}: {event.error_message or 'no reason given'}"]
        case _:
            return []
