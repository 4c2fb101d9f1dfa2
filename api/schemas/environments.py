"""Environments of Sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.approvals import Person, named
from api.schemas.base import Body, Query, Shape, at_most
from api.schemas.sessions import IMAGE_PATTERN, MAX_LIMIT
from api.schemas.turns import Reason
from api.times import rfc3339
from milepost.domain.environments import (
    MAX_COMMAND_CHARACTERS,
    MAX_PORTS,
    Consent,
    Environment,
    EnvironmentPlan,
    EnvironmentResult,
    EnvironmentState,
)
from milepost.domain.events import EnvironmentOutput
from milepost.services.environments import MAX_PIECES, ChangeEnvironment, ReviewEnvironment

PREVIEW_CHARACTERS = 4_000
Command = Annotated[str, *at_most(MAX_COMMAND_CHARACTERS)]
Image = Annotated[str, Field(pattern=f"^$|{IMAGE_PATTERN}")]
Ports = Annotated[list[Annotated[int, Field(ge=1, le=65535)]], Field(max_length=MAX_PORTS)]


class EnvironmentsQuery(Query):
    """A page of generations."""

    cursor: Annotated[int | None, Field(ge=1, le=2**31 - 1)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50


class ProgressQuery(Query):
    """From which piece on."""

    after: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1


class EnvironmentActor(Body):
    """Who asks for it."""

    actor: Person | None = None


class EnvironmentReview(EnvironmentActor):
    """A decision about the generation that waits.

    With `approve` the command runs and ports are published, as proposed or as given here; the exact text is what a
    person agreed to. Without it nothing of the proposal is used.
    """

    approve: bool
    generation: Annotated[int | None, Field(ge=1, le=2**31 - 1)] = None
    image: Image | None = None
    command: Command | None = None
    ports: Ports | None = None
    reason: Reason | None = None

    def request(self, door: str) -> ReviewEnvironment:
        """What the service gets."""
        return ReviewEnvironment(
            approve=self.approve,
            actor=named(door, self.actor),
            generation=self.generation,
            image=self.image,
            command=self.command,
            ports=None if self.ports is None else tuple(self.ports),
            reason=self.reason,
        )


class EnvironmentChange(EnvironmentActor):
    """Another plan. What is left out stays; an empty text is none; `detect` reads the folder again."""

    image: Image | None = None
    command: Command | None = None
    ports: Ports | None = None
    detect: bool = False

    def request(self, door: str) -> ChangeEnvironment:
        """What the service gets."""
        ports = None if self.ports is None else tuple(self.ports)
        return ChangeEnvironment(named(door, self.actor), self.image, self.command, ports, self.detect)


class PlanShape(Shape):
    """What the environment is to be made of. `image` null is the instance's default image."""

    image: str | None
    command: str | None
    source: str
    """Of the command: none, devcontainer, lockfile, edited."""
    files: list[str]
    ports: list[int]
    variables: dict[str, str]
    node: bool
    """A Node project: its node_modules is a volume of its own."""
    notes: list[str]

    @classmethod
    def of(cls, plan: EnvironmentPlan) -> PlanShape:
        return cls(
            image=plan.image,
            command=plan.command,
            source=plan.source.value,
            files=list(plan.files),
            ports=list(plan.ports),
            variables=dict(plan.variables),
            node=plan.node,
            notes=list(plan.notes),
        )


class ConsentShape(Shape):
    """What was decided about command and ports, by whom."""

    approved: bool
    actor: str
    reason: str | None
    at: str

    @classmethod
    def of(cls, consent: Consent) -> ConsentShape:
        return cls(approved=consent.approved, actor=consent.actor, reason=consent.reason, at=rfc3339(consent.at))


class EnvironmentResultShape(Shape):
    """How preparing ended. `output` is at most 4,000 characters from the end."""

    exit_code: int | None
    output: str
    output_truncated: bool
    """Whether more of it is at {self}/output."""
    seconds: float | None
    error_code: str | None
    error: str | None
    fix: str | None

    @classmethod
    def of(cls, result: EnvironmentResult) -> EnvironmentResultShape:
        content = result.output
        text = "" if content is None else content.text
        return cls(
            exit_code=result.exit_code,
            output=text[-PREVIEW_CHARACTERS:],
            output_truncated=content is not None and (content.blob is not None or len(text) > PREVIEW_CHARACTERS),
            seconds=result.seconds,
            error_code=result.error_code,
            error=result.error,
            fix=result.fix,
        )


class EnvironmentShape(Shape):
    """One generation of a Session's environment. Times are RFC 3339 in UTC."""

    session_id: str
    generation: int
    state: str
    """unprepared, awaiting_approval, preparing, ready or failed."""
    asks: bool
    """Whether a person must decide before it can be Ready."""
    plan: PlanShape
    consent: ConsentShape | None
    result: EnvironmentResultShape | None
    after_number: int
    """The Session's last turn when the generation was begun."""
    created_at: str
    changed_at: str

    @classmethod
    def of(cls, found: Environment, *, asks: bool | None = None) -> EnvironmentShape:
        """`asks` is known of an unprepared one; any other asks if it waits for approval."""
        return cls(
            session_id=found.session_id,
            generation=found.generation,
            state=found.state.value,
            asks=found.state is EnvironmentState.AWAITING_APPROVAL if asks is None else asks,
            plan=PlanShape.of(found.plan),
            consent=None if found.consent is None else ConsentShape.of(found.consent),
            result=None if found.result is None else EnvironmentResultShape.of(found.result),
            after_number=found.after_number,
            created_at=rfc3339(found.created_at),
            changed_at=rfc3339(found.changed_at),
        )


class EnvironmentPage(Shape):
    """Generations, newest first. `next_cursor` continues the list, null at its end."""

    environments: list[EnvironmentShape]
    next_cursor: int | None


class OutputPiece(Shape):
    """What a setup command put out for a while. `left_out` bytes before it are in no piece."""

    number: int
    text: str
    left_out: int


class EnvironmentProgress(Shape):
    """The state of a generation, and pieces of its output, at most 100; `more` if there are more already."""

    state: str
    pieces: list[OutputPiece]
    more: bool

    @classmethod
    def of(cls, found: Environment, pieces: list[EnvironmentOutput]) -> EnvironmentProgress:
        shown = [OutputPiece(number=each.number, text=each.text, left_out=each.left_out) for each in pieces]
        return cls(state=found.state.value, pieces=shown, more=len(pieces) == MAX_PIECES)
