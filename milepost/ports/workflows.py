"""Starting, cancelling and describing workflows, without a Temporal type in sight."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class WorkflowState(StrEnum):
    """`NOT_FOUND` is the cluster's own word. A cluster that does not answer raises TemporalUnavailable instead."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    TERMINATED = "terminated"
    TIMED_OUT = "timed_out"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class TurnStart:
    """What the dispatcher hands to Temporal for one turn; the memo makes the Temporal UI readable."""

    workflow_id: str
    turn_id: str
    session_id: str
    title: str
    agent: str


@dataclass(frozen=True, slots=True)
class EnvironmentStart:
    """What the dispatcher hands to Temporal for one generation of a Session's environment."""

    session_id: str
    generation: int
    title: str


class WorkflowStarter(Protocol):
    async def start_turn(self, start: TurnStart) -> None:
        """Start the turn's workflow; a workflow id that exists already is success. Raises TemporalUnavailable."""

    async def start_environment(self, start: EnvironmentStart) -> None:
        """Start the generation's workflow; an id that exists already is success. Raises TemporalUnavailable."""

    async def answer(self, workflow_id: str, approval_id: str) -> None:
        """Tell a workflow that an approval was answered; a closed or unknown workflow is success.

        Raises TemporalUnavailable.
        """

    async def cancel(self, workflow_id: str) -> None:
        """Ask for cancellation; a closed or unknown workflow is success. Raises TemporalUnavailable."""

    async def state(self, workflow_id: str) -> WorkflowState:
        """State of the id's latest run. Raises TemporalUnavailable when the cluster does not answer."""

    async def check(self) -> None:
        """Raise TemporalUnavailable with the address and what to do unless the cluster answers."""
