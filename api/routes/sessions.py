"""Sessions: open, list, get, close, reopen."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.dependencies import AppServices, SessionId
from api.documentation import problems
from api.responses import reply
from api.schemas.sessions import SessionOpen, SessionPage, SessionShape, SessionsQuery
from milepost.domain.errors import InvalidInput, SessionNotFound

router = APIRouter(prefix="/api/v1", tags=["sessions"])


@router.post(
    "/sessions",
    status_code=201,
    response_model=SessionShape,
    responses=problems(400, 404, 413, 422),
    summary="Open a Session on a folder",
)
async def open_session(body: SessionOpen, services: AppServices) -> Response:
    """The Location header names the new Session. Agents that the configuration does not have are a 404."""
    wanted = body.command()
    if wanted.skills is not None:
        wanted = replace(wanted, skills=services.skills.check(wanted.skills))
    session = await services.sessions.open(wanted)
    return reply(SessionShape.of(session), 201, {"Location": f"/api/v1/sessions/{session.session_id}"})


@router.get("/sessions", response_model=SessionPage, responses=problems(422), summary="List Sessions, newest first")
async def list_sessions(query: Annotated[SessionsQuery, Query()], services: AppServices) -> Response:
    """A page; pass `next_cursor` as `cursor` to go on."""
    try:
        found = await services.sessions.page(status=query.wanted(), before=query.cursor, limit=query.limit + 1)
    except SessionNotFound as error:
        raise InvalidInput("The cursor is of no page.", field="cursor", fix="Begin without a cursor.") from error
    shown = found[: query.limit]
    more = len(found) > query.limit
    page = SessionPage(
        sessions=[SessionShape.of(session) for session in shown],
        next_cursor=shown[-1].session_id if more else None,
    )
    return reply(page)


@router.get("/sessions/{session_id}", response_model=SessionShape, responses=problems(404), summary="Get a Session")
async def get_session(session_id: SessionId, services: AppServices) -> Response:
    """One Session."""
    return reply(SessionShape.of(await services.sessions.get(session_id)))


@router.post(
    "/sessions/{session_id}/close",
    response_model=SessionShape,
    responses=problems(404, 409),
    summary="Close a Session",
)
async def close_session(session_id: SessionId, services: AppServices) -> Response:
    """A closed Session accepts no turns. Closing a closed one changes nothing; one with a running turn is a 409."""
    return reply(SessionShape.of(await services.sessions.close(session_id)))


@router.post(
    "/sessions/{session_id}/reopen",
    response_model=SessionShape,
    responses=problems(404),
    summary="Reopen a closed Session",
)
async def reopen_session(session_id: SessionId, services: AppServices) -> Response:
    """Makes a closed Session active again; an active one stays as it is."""
    return reply(SessionShape.of(await services.sessions.reopen(session_id)))
