"""Rewinding and forking a Session."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.dependencies import Actor, AppServices, SessionId
from api.documentation import problems
from api.responses import reply
from api.schemas.forks import ForkBody, ForkReport
from api.schemas.rewinds import RewindBody, RewindPage, RewindReport, RewindShape, RewindsQuery
from milepost.services.rewinds import RewindResult

router = APIRouter(prefix="/api/v1", tags=["rewinds"])


@router.post(
    "/sessions/{session_id}/rewind",
    response_model=RewindReport,
    responses=problems(400, 404, 409, 413, 422),
    summary="Rewind a Session to a turn",
)
async def rewind_session(session_id: SessionId, body: RewindBody, services: AppServices, actor: Actor) -> Response:
    """Turns after the named one no longer count; nothing is deleted or started. A running turn is a 409.

    With `files`, files that these turns changed are restored, also those that shell commands changed, and the present
    state is kept. Files that somebody else changed since stay as they are, unless `overwrite` is set.
    """
    to = body.command(session_id, actor)
    if body.dry_run:
        return reply(RewindReport.of(RewindResult(await services.rewinds.plan(to), None), dry_run=True))
    return reply(RewindReport.of(await services.rewinds.rewind(to), dry_run=False))


@router.get(
    "/sessions/{session_id}/rewinds",
    response_model=RewindPage,
    responses=problems(404, 422),
    summary="List a Session's rewinds, newest first",
)
async def list_rewinds(
    session_id: SessionId, query: Annotated[RewindsQuery, Query()], services: AppServices
) -> Response:
    """A page; pass `next_cursor` as `cursor` to go on."""
    found = await services.rewinds.page(session_id, before=query.cursor, limit=query.limit + 1)
    shown = found[: query.limit]
    page = RewindPage(
        session_id=session_id,
        rewinds=[RewindShape.of(rewind) for rewind in shown],
        next_cursor=shown[-1].rewind_id if len(found) > query.limit else None,
    )
    return reply(page)


@router.post(
    "/sessions/{session_id}/fork",
    status_code=201,
    response_model=ForkReport,
    responses={
        200: {"model": ForkReport, "description": "A dry run."},
        **problems(400, 404, 409, 413, 422),
    },
    summary="Fork a Session from a turn",
)
async def fork_session(session_id: SessionId, body: ForkBody, services: AppServices, actor: Actor) -> Response:
    """A new Session with a copy of the turns up to a point, also up to a superseded one; the source stays as it is."""
    request = body.command(session_id, actor)
    if body.dry_run:
        return reply(ForkReport.planned(await services.forks.plan(request)))
    done = await services.forks.fork(request)
    location = {"Location": f"/api/v1/sessions/{done.session.session_id}"}
    return reply(ForkReport.made(done), 201, location)
