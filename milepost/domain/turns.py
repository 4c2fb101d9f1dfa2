"""Turns: one accepted request of a Session and its one terminal state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from milepost.domain.attachments import AttachmentRef
from milepost.domain.budgets import Limits
from milepost.domain.content import Content
from milepost.domain.messages import Sampling
from milepost.domain.usage import Usage


class TurnState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"

    @property
    def terminal(self) -> bool:
        return self is not TurnState.RUNNING


TURN_TRANSITIONS: dict[TurnState, frozenset[TurnState]] = {
    TurnState.RUNNING: frozenset({TurnState.COMPLETED, TurnState.FAILED, TurnState.STOPPED, TurnState.INTERRUPTED}),
    TurnState.COMPLETED: frozenset(),
    TurnState.FAILED: frozenset(),
    TurnState.STOPPED: frozenset(),
    TurnState.INTERRUPTED: frozenset(),
}


class TurnStatus(StrEnum):
    """What a reader sees beside the state; derived, never stored. A terminal turn's status is `ended`."""

    WAITING = "waiting"
    WORKING = "working"
    WAITING_FOR_PERSON = "waiting_for_person"
    WAITING_FOR_WORKSPACE = "waiting_for_workspace"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Overrides:
    """What one turn changes of its agent; None keeps the agent's. `tools` are some of the agent's.

    A `stateless` turn gets nothing of the Session's earlier turns and no memory, and later turns get nothing of it.
    """

    sampling: Sampling | None = None
    max_rounds: int | None = None
    tools: tuple[str, ...] | None = None
    stateless: bool = False


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """Choices of one turn; None takes the agent's configuration. `script` is the scripted provider's YAML text.

    `budget` tightens what the configuration allows for a turn.
    """

    agent: str | None = None
    provider: str | None = None
    model: str | None = None
    script: Content | None = None
    budget: Limits | None = None
    overrides: Overrides | None = None

    @property
    def stateless(self) -> bool:
        return self.overrides is not None and self.overrides.stateless


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What a person asked. `text` is kept whole; `options` are part of the content that idempotency compares.

    `attachments` are the files that were selected when the turn was accepted.
    """

    text: Content
    options: TurnOptions = TurnOptions()
    attachments: tuple[AttachmentRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """The row of a turn. Times are microseconds since the epoch, UTC.

    `number` counts a Session's turns from 1. `claimed_run` is the Temporal run id that owns the execution.
    `content_digest` is what idempotency compares. `dispatched_at` is when Temporal acknowledged the start.
    `superseded`: a rewind took it out of the conversation; nothing of it is deleted. `retry_of` is the turn whose
    request was sent again. `copied_from` is the turn of another Session that a fork copied; its usage was spent there.
    """

    turn_id: str
    session_id: str
    number: int
    state: TurnState
    request: TurnRequest
    content_digest: str
    idempotency_key: str | None
    workflow_id: str
    claimed_run: str | None
    generation: int
    created_at: int
    dispatched_at: int | None
    stop_requested_at: int | None
    ended_at: int | None
    error_code: str | None
    error_message: str | None
    usage: Usage
    superseded: bool
    retry_of: str | None = None
    copied_from: str | None = None

    @property
    def has_workflow(self) -> bool:
        """Whether Temporal may know its workflow: no run ever owned one that was imported, copied or never begun."""
        return self.claimed_run is not None or not self.state.terminal
