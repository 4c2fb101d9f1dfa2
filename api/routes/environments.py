"""Environments: look, decide, prepare again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from api.dependencies import Actor, AppServices, SessionId
from api.documentation import problems
from api.responses import reply
from api.schemas.approvals import named
from api.schemas.environments import (
    EnvironmentActor,
    EnvironmentChange,
    EnvironmentPage,
    EnvironmentProgress,
    EnvironmentReview,
    EnvironmentShape,
    EnvironmentsQuery,
    ProgressQuery,
)
from api.texts import TEXT_RESPONSE, text_response
from milepost.domain.content import Content
from milepost.domain.environments import Environment, EnvironmentState
from milepost.services.catalog import Services

router = APIRouter(prefix="/api/v1", tags=["environments"])


def _shape(services: Services, found: Environment) -> EnvironmentShape:
    if found.state is EnvironmentState.UNPREPARED:
        return EnvironmentShape.of(found, asks=services.environments.asks(found))
    return EnvironmentShape.of(found)


@router.get(
    "/sessions/{session_id}/environment",
    response_model=EnvironmentShape,
    responses=problems(404),
    summary="Look at a Session's environment",
)
async def get_environment(session_id: SessionId, services: AppServices) -> Response:
    """The current generation. One that is unprepared shows what its folder proposes now; nothing of it is run."""
    return reply(_shape(services, await services.environments.get(session_id)))


@router.get(
    "/sessions/{session_id}/environments",
    response_model=EnvironmentPage,
    responses=problems(404, 422),
    summary="List the generations of an environment, newest first",
)
async def list_environments(
    session_id: SessionId, query: Annotated[EnvironmentsQuery, Query()], services: AppServices
) -> Response:
    """What each was made of, who agreed, how it ended; pass `next_cursor` as `cursor` to go on."""
    found = await services.environments.generations(session_id, before=query.cursor, limit=query.limit + 1)
    shown = found[: query.limit]
    page = EnvironmentPage(
        environments=[_shape(services, each) for each in shown],
        next_cursor=shown[-1].generation if len(found) > query.limit else None,
    )
    return reply(page)


@router.get(
    "/sessions/{session_id}/environments/{generation}/output",
    responses=problems(404) | {200: TEXT_RESPONSE},
    response_class=Response,
    summary="Read what a setup command put out",
)
async def environment_output(
    session_id: SessionId, generation: Annotated[str, Path(description="A generation.")], services: AppServices
) -> Response:
    """All that was kept of it: of long output the start and the end."""
    found = await services.environments.generation(session_id, generation)
    output = None if found.result is None else found.result.output
    return await text_response(services, output or Content(""))


@router.get(
    "/sessions/{session_id}/environments/{generation}/progress",
    response_model=EnvironmentProgress,
    responses=problems(404, 422),
    summary="Read what a setup command puts out while it runs",
)
async def environment_progress(
    session_id: SessionId,
    generation: Annotated[str, Path(description="A generation.")],
    query: Annotated[ProgressQuery, Query()],
    services: AppServices,
) -> Response:
    """Pieces as they come, both streams together; pass the last `number` as `after` to go on.

    The state is as old as the pieces at the most: once it is `ready` or `failed` and there is no more, that was all.
    """
    found = await services.environments.generation(session_id, generation)
    pieces = await services.environments.pieces(session_id, generation, query.after)
    return reply(EnvironmentProgress.of(found, pieces))


@router.post(
    "/sessions/{session_id}/environment/prepare",
    status_code=202,
    response_model=EnvironmentShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Prepare a Session's environment",
)
async def prepare_environment(
    session_id: SessionId, services: AppServices, door: Actor, body: EnvironmentActor | None = None
) -> Response:
    """Looks at the folder, then prepares or asks. One that has begun stays as it is."""
    actor = named(door, body.actor if body else None)
    return reply(_shape(services, await services.environments.prepare(session_id, actor)), 202)


@router.post(
    "/sessions/{session_id}/environment/review",
    status_code=202,
    response_model=EnvironmentShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Decide about a setup command",
)
async def review_environment(
    session_id: SessionId, body: EnvironmentReview, services: AppServices, door: Actor
) -> Response:
    """The decision wins over the operator's default. A generation that does not wait for one is a 409."""
    return reply(_shape(services, await services.environments.review(session_id, body.request(door))), 202)


@router.post(
    "/sessions/{session_id}/environment/change",
    status_code=202,
    response_model=EnvironmentShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Give a Session another environment",
)
async def change_environment(
    session_id: SessionId, body: EnvironmentChange, services: AppServices, door: Actor
) -> Response:
    """A new generation. A command that was edited, or comes from a lockfile, is asked about."""
    return reply(_shape(services, await services.environments.change(session_id, body.request(door))), 202)


@router.post(
    "/sessions/{session_id}/environment/rebuild",
    status_code=202,
    response_model=EnvironmentShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Prepare the same environment again",
)
async def rebuild_environment(
    session_id: SessionId, services: AppServices, door: Actor, body: EnvironmentActor | None = None
) -> Response:
    """From nothing, by the same consent, as a new generation."""
    actor = named(door, body.actor if body else None)
    return reply(_shape(services, await services.environments.rebuild(session_id, actor)), 202)


@router.post(
    "/sessions/{session_id}/environment/stop",
    response_model=EnvironmentShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Stop preparing",
)
async def stop_environment(
    session_id: SessionId, services: AppServices, door: Actor, body: EnvironmentActor | None = None
) -> Response:
    """The setup command is killed, and the generation has failed."""
    actor = named(door, body.actor if body else None)
    return reply(_shape(services, await services.environments.stop(session_id, actor)))
