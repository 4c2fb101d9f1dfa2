"""Turns: begin, get, list, active, stop, and the whole request and output."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from api.dependencies import Actor, AppServices, SessionId, TurnId
from api.documentation import problems
from api.responses import reply
from api.schemas.changes import ChangesShape
from api.schemas.estimates import EstimateBody, EstimateShape
from api.schemas.turns import (
    ActiveTurn,
    BegunTurn,
    NumberPage,
    RetryPlan,
    TurnBegin,
    TurnPage,
    TurnRetry,
    TurnShape,
    TurnStop,
    one_key,
    turn_fields,
    turn_path,
)
from api.texts import TEXT_RESPONSE, text_response
from milepost.services.catalog import Services
from milepost.services.turns import RetryTurn, TurnView

router = APIRouter(prefix="/api/v1", tags=["turns"])


def turn_shape(services: Services, view: TurnView) -> TurnShape:
    """A turn with its Temporal UI link."""
    return TurnShape.model_validate(turn_fields(view, services.temporal_link(view.turn.workflow_id)))


@router.post(
    "/sessions/{session_id}/turns",
    status_code=202,
    response_model=BegunTurn,
    responses={
        200: {"model": BegunTurn, "description": "An earlier request of the same key or id had made this turn."},
        **problems(400, 404, 409, 413, 422),
    },
    summary="Begin a turn",
)
async def begin_turn(
    session_id: SessionId,
    body: TurnBegin,
    services: AppServices,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """Accepts the request durably and returns at once; follow `links.events` for what happens.

    The same Idempotency-Key (or `idempotency_key`, or `turn_id`) with the same content returns the existing turn with
    200; with other content it is a 409. While a turn of the Session runs, another one is a 409 that names it.
    """
    return _begun(services, await services.turns.begin(body.command(session_id, idempotency_key)))


def _begun(services: Services, view: TurnView) -> Response:
    fields = turn_fields(view, services.temporal_link(view.turn.workflow_id)) | {"created": view.created}
    location = {"Location": turn_path(view.turn.turn_id)}
    return reply(BegunTurn.model_validate(fields), 202 if view.created else 200, location)


@router.get(
    "/sessions/{session_id}/turns",
    response_model=TurnPage,
    responses=problems(404, 422),
    summary="List a Session's turns, newest first",
)
async def list_turns(session_id: SessionId, query: Annotated[NumberPage, Query()], services: AppServices) -> Response:
    """A page; pass `next_cursor` as `cursor` to go on."""
    found = await services.turns.page(session_id, before_number=query.cursor, limit=query.limit + 1)
    shown = found[: query.limit]
    more = len(found) > query.limit
    page = TurnPage(
        turns=[turn_shape(services, view) for view in shown], next_cursor=shown[-1].turn.number if more else None
    )
    return reply(page)


@router.get(
    "/sessions/{session_id}/turns/active",
    response_model=ActiveTurn,
    responses=problems(404),
    summary="Get the running turn",
)
async def active_turn(session_id: SessionId, services: AppServices) -> Response:
    """The Session's running turn, or null."""
    view = await services.turns.active(session_id)
    return reply(ActiveTurn(turn=None if view is None else turn_shape(services, view)))


@router.post(
    "/sessions/{session_id}/estimate",
    response_model=EstimateShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Estimate a turn",
)
async def estimate_turn(session_id: SessionId, body: EstimateBody, services: AppServices) -> EstimateShape:
    """What a turn with this request may use; nothing is begun and no model is called."""
    return EstimateShape.of(await services.estimates.estimate(session_id, body.text, body.agent))


@router.get("/turns/{turn_id}", response_model=TurnShape, responses=problems(404), summary="Get a turn")
async def get_turn(turn_id: TurnId, services: AppServices) -> Response:
    """One turn, without its output."""
    return reply(turn_shape(services, await services.turns.get(turn_id)))


@router.post(
    "/turns/{turn_id}/stop",
    status_code=202,
    response_model=TurnShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Stop a turn",
)
async def stop_turn(turn_id: TurnId, services: AppServices, actor: Actor, body: TurnStop | None = None) -> Response:
    """Asks this turn to stop; asking again changes nothing. A turn that is not running is a 409."""
    view = await services.turns.stop(turn_id, actor=actor, reason=body.reason if body else None)
    return reply(turn_shape(services, view), 202)


@router.post(
    "/turns/{turn_id}/retry",
    status_code=202,
    response_model=BegunTurn,
    responses={
        200: {"model": BegunTurn | RetryPlan, "description": "A dry run, or the turn an earlier request had made."},
        **problems(400, 404, 409, 413, 422),
    },
    summary="Send a turn's request again",
)
async def retry_turn(
    turn_id: TurnId,
    services: AppServices,
    body: TurnRetry | None = None,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """A new turn with the same request, linked to the old one by `retry_of`. The old one stays as it is."""
    body = body or TurnRetry()
    key = one_key(idempotency_key, body.idempotency_key)
    view = await services.turns.retry(RetryTurn(turn_id, body.turn_id, key), dry_run=body.dry_run)
    if not body.dry_run:
        return _begun(services, view)
    text = view.turn.request.text
    plan = RetryPlan(
        dry_run=True,
        session_id=view.turn.session_id,
        retry_of=turn_id,
        request=text.text,
        request_truncated=text.blob is not None,
    )
    return reply(plan)


@router.get(
    "/turns/{turn_id}/changes",
    response_model=ChangesShape,
    responses=problems(404, 422),
    summary="Get what a turn did to files",
)
async def turn_changes(turn_id: TurnId, services: AppServices, hunks: Annotated[bool, Query()] = True) -> Response:
    """Which files the turn changed, by file tools or by shell, and which others changed meanwhile."""
    return reply(ChangesShape.of(await services.changes.of_turn(turn_id), hunks=hunks))


@router.get(
    "/turns/{turn_id}/request",
    response_class=Response,
    responses={200: TEXT_RESPONSE, **problems(404)},
    summary="Get a turn's whole request text",
)
async def turn_request(turn_id: TurnId, services: AppServices) -> Response:
    """The text as it was sent, of any length."""
    view = await services.turns.get(turn_id)
    return await text_response(services, view.turn.request.text)


@router.get(
    "/turns/{turn_id}/output",
    response_class=Response,
    responses={200: TEXT_RESPONSE, **problems(404)},
    summary="Get a turn's whole output text",
)
async def turn_output(turn_id: TurnId, services: AppServices) -> Response:
    """The answer, of any length; what there is of it while the turn runs."""
    entry = await services.history.entry(turn_id)
    return await text_response(services, entry.output)
