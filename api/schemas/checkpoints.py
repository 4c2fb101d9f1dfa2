"""Checkpoints."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Body, Query, Shape
from api.schemas.usage import UsageShape
from api.times import rfc3339
from milepost.services.checkpoint_files import CheckpointView
from milepost.services.importing.recovery import Recovered

AgentName = Annotated[str, Field(min_length=1, max_length=200)]


class CheckpointsQuery(Query):
    agent: AgentName | None = None
    """Only those of this agent."""


class CheckpointBody(Body):
    agent: AgentName | None = None
    """Only of this agent's conversation."""


class CheckpointTurn(Shape):
    """`messages` of the turn as the model gets it. `ended` is false for one that was running then."""

    turn_id: str
    number: int
    messages: int
    bytes: int
    ended: bool


class CheckpointShape(Shape):
    """A checkpoint. Where `usable` is false, `problem` says why, and what is in the file is not known."""

    agent: str
    position: int
    """Number of the event in the Session's stream that it goes up to."""
    bytes: int
    usable: bool
    problem: str | None
    written_at: str | None
    messages: int
    omitted: int
    """Number of the newest turn that did not fit, 0 if all did."""
    usage: UsageShape | None
    """What the Session had used by then."""
    turns: list[CheckpointTurn]
    """Oldest first."""

    @classmethod
    def of(cls, view: CheckpointView) -> CheckpointShape:
        found = view.checkpoint
        turns = (
            []
            if found is None
            else [
                CheckpointTurn(
                    turn_id=item.turn_id,
                    number=item.number,
                    messages=len(item.messages),
                    bytes=item.size,
                    ended=item.ended,
                )
                for item in found.segments
            ]
        )
        return cls(
            agent=view.agent,
            position=view.file.seq,
            bytes=view.file.size,
            usable=found is not None,
            problem=view.problem,
            written_at=None if found is None else rfc3339(found.at),
            messages=sum(turn.messages for turn in turns),
            omitted=0 if found is None else found.omitted,
            usage=None if found is None else UsageShape.of(found.usage),
            turns=turns,
        )


class CheckpointList(Shape):
    """By agent, newest first."""

    session_id: str
    checkpoints: list[CheckpointShape]


class RecoverBody(Body):
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Folder below `checkpoints` that has the old checkpoints; by default SESSION:AGENT."""


class RecoveryShape(Shape):
    """`created` is false if it had been recovered before. `notes` tell which versions were passed over, and why."""

    session_id: str
    created: bool
    name: str
    version: int
    turns: int
    interrupted: int
    notes: list[str]

    @classmethod
    def of(cls, done: Recovered) -> RecoveryShape:
        return cls(
            session_id=done.session_id,
            created=done.created,
            name=done.name,
            version=done.version,
            turns=done.turns,
            interrupted=done.interrupted,
            notes=list(done.notes),
        )


class CheckpointsDiscarded(Shape):
    session_id: str
    discarded: int
