"""Turns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.schemas.base import Body, Query, Shape, at_most
from api.schemas.budgets import TurnBudgetBody
from api.schemas.overrides import MaxRounds, SamplingBody, Tools
from api.schemas.sessions import MAX_LIMIT
from api.schemas.usage import UsageShape
from api.times import rfc3339, rfc3339_or_none
from milepost.domain.errors import InvalidInput
from milepost.domain.turns import Overrides, Turn, TurnState
from milepost.services.turns import BeginTurn, TurnView

_MAX_NUMBER = 2**31 - 1

Name = Annotated[str, *at_most(500)]
Reason = Annotated[str, *at_most(2000)]


class TurnBegin(Body):
    """A request for a turn. `turn_id` or `idempotency_key` make sending it again harmless."""

    text: Annotated[
        str, Field(description="What the agent shall do; at most 4 MiB.", examples=["Fix the failing test"])
    ]
    agent: Name | None = None
    provider: Name | None = None
    model: Name | None = None
    script: Annotated[str | None, Field(description="YAML for the 'scripted' provider; at most 4 MiB.")] = None
    budget: TurnBudgetBody | None = None
    sampling: SamplingBody | None = None
    max_rounds: MaxRounds = None
    tools: Annotated[Tools, Field(description="Some of the agent's tools; the others are not offered.")] = None
    stateless: Annotated[
        bool,
        Field(description="Without earlier turns and without memory; later turns get nothing of it."),
    ] = False
    turn_id: Annotated[str | None, Field(max_length=64)] = None
    idempotency_key: Annotated[str | None, Field(max_length=200)] = None

    def command(self, session_id: str, header_key: str | None) -> BeginTurn:
        """Raises InvalidInput if header and body name different keys."""
        return BeginTurn(
            session_id=session_id,
            text=self.text,
            agent=self.agent,
            provider=self.provider,
            model=self.model,
            script=self.script,
            budget=None if self.budget is None else self.budget.limits(),
            overrides=self._overrides(),
            turn_id=self.turn_id,
            idempotency_key=one_key(header_key, self.idempotency_key),
        )

    def _overrides(self) -> Overrides | None:
        found = Overrides(
            sampling=None if self.sampling is None else self.sampling.chosen(),
            max_rounds=self.max_rounds,
            tools=None if self.tools is None else tuple(self.tools),
            stateless=self.stateless,
        )
        return None if found == Overrides() else found


class TurnRetry(Body):
    """How to send a request again. `turn_id` (of the new turn) or `idempotency_key` make it harmless to repeat."""

    turn_id: Annotated[str | None, Field(max_length=64)] = None
    idempotency_key: Annotated[str | None, Field(max_length=200)] = None
    dry_run: bool = False


class TurnStop(Body):
    """Why the turn shall stop."""

    reason: Reason | None = None


def one_key(header_key: str | None, body_key: str | None) -> str | None:
    """The idempotency key of a request. Raises InvalidInput if header and body name different keys."""
    if header_key is not None and body_key not in (None, header_key):
        raise InvalidInput(
            "The Idempotency-Key header and the field idempotency_key differ.",
            field="idempotency_key",
            fix="Send one of them, or the same value in both.",
        )
    return body_key or header_key


class NumberPage(Query):
    """A page of something that is numbered; `cursor` is the `next_cursor` of the page before."""

    cursor: Annotated[int | None, Field(ge=1, le=_MAX_NUMBER)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50


class TurnError(Shape):
    """Why a turn failed or was interrupted."""

    code: str
    message: str


class TurnLinks(Shape):
    """Paths of this API, and the turn's page in the Temporal UI."""

    self: str
    session: str
    history: str
    events: str
    stop: str
    temporal: str | None


class TurnShape(Shape):
    """A turn. Times are RFC 3339 in UTC."""

    turn_id: str
    session_id: str
    number: int
    state: str
    """running, completed, failed, stopped or interrupted."""
    status: str
    """Derived while it runs: waiting, working, waiting_for_person, waiting_for_workspace, recovering or stopping;
    ended after."""
    request: str
    request_truncated: bool
    """Whether `request` is a preview; the whole is at {self}/request."""
    agent: str | None
    provider: str | None
    model: str | None
    idempotency_key: str | None
    workflow_id: str
    temporal_url: str | None
    """None if no run of a workflow ever owned the turn: it was imported, copied by a fork, or ended before it began."""

    usage: UsageShape
    error: TurnError | None
    reason: str | None
    """Why a stopped or interrupted turn ended."""
    superseded: bool
    """A rewind took it out of the conversation."""
    retry_of: str | None
    """The turn whose request this one sent again."""
    copied_from: str | None
    """The turn of another Session that a fork copied."""
    created_at: str
    dispatched_at: str | None
    stop_requested_at: str | None
    ended_at: str | None
    links: TurnLinks


class BegunTurn(TurnShape):
    """An accepted turn. `created` is false if an earlier request of the same key or id had made it."""

    created: bool


class RetryPlan(Shape):
    """What a retry would do: a new turn of this Session with the same request."""

    dry_run: bool
    session_id: str
    retry_of: str
    request: str
    request_truncated: bool


class TurnPage(Shape):
    """Newest first. `next_cursor` continues the list, null at its end."""

    turns: list[TurnShape]
    next_cursor: int | None


class ActiveTurn(Shape):
    """The Session's running turn, if there is one."""

    turn: TurnShape | None


def turn_fields(view: TurnView, temporal_url: str) -> dict[str, object]:
    """The values of `TurnShape`."""
    turn, options = view.turn, view.turn.request.options
    url = temporal_url if turn.has_workflow else None
    return {
        "turn_id": turn.turn_id,
        "session_id": turn.session_id,
        "number": turn.number,
        "state": turn.state.value,
        "status": view.status.value,
        "request": turn.request.text.text,
        "request_truncated": turn.request.text.blob is not None,
        "agent": options.agent,
        "provider": options.provider,
        "model": options.model,
        "idempotency_key": turn.idempotency_key,
        "workflow_id": turn.workflow_id,
        "temporal_url": url,
        "usage": UsageShape.of(turn.usage),
        "error": turn_error(turn),
        "reason": turn.error_message if turn.state in (TurnState.STOPPED, TurnState.INTERRUPTED) else None,
        "superseded": turn.superseded,
        "retry_of": turn.retry_of,
        "copied_from": turn.copied_from,
        "created_at": rfc3339(turn.created_at),
        "dispatched_at": rfc3339_or_none(turn.dispatched_at),
        "stop_requested_at": rfc3339_or_none(turn.stop_requested_at),
        "ended_at": rfc3339_or_none(turn.ended_at),
        "links": _links(turn, url),
    }


def turn_error(turn: Turn) -> TurnError | None:
    """A failed turn's code and text; an interrupted one has the code `turn_interrupted`."""
    if turn.state is TurnState.FAILED:
        return TurnError(code=turn.error_code or "turn_failed", message=turn.error_message or "The turn failed.")
    if turn.state is TurnState.INTERRUPTED:
        return TurnError(code="turn_interrupted", message=turn.error_message or "The turn was interrupted.")
    return None


def turn_path(turn_id: str) -> str:
    """Where a turn is."""
    return f"/api/v1/turns/{turn_id}"


def _links(turn: Turn, temporal_url: str | None) -> TurnLinks:
    session = f"/api/v1/sessions/{turn.session_id}"
    path = turn_path(turn.turn_id)
    return TurnLinks(
        self=path,
        session=session,
        history=f"{path}/history",
        events=f"{session}/events",
        stop=f"{path}/stop",
        temporal=temporal_url,
    )
