"""Agents, and consolidations of their memory."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from api.dependencies import Actor, AppServices
from api.documentation import problems
from api.responses import reply
from api.schemas.agents import (
    AgentList,
    AgentShape,
    ConsolidationPage,
    ConsolidationShape,
    ConsolidationsQuery,
    ReviewBody,
    StopAgentBody,
)
from milepost.domain.consolidation import ConsolidationState

router = APIRouter(prefix="/api/v1", tags=["agents"])

AgentId = Annotated[str, Path(description="Id of an agent.", max_length=200)]
ConsolidationId = Annotated[str, Path(description="Id of a consolidation.", max_length=200)]


@router.get("/agents", response_model=AgentList, responses=problems(), summary="List the agents of the configuration")
async def list_agents(services: AppServices) -> Response:
    """By id, each with its state."""
    return reply(AgentList(agents=[AgentShape.of(view) for view in await services.agents.all()]))


@router.post(
    "/agents/{agent}/stop",
    response_model=AgentShape,
    responses=problems(400, 404, 413, 422),
    summary="Stop an agent",
)
async def stop_agent(agent: AgentId, body: StopAgentBody, services: AppServices, actor: Actor) -> Response:
    """It begins nothing any more, in any Session, until it is started again; its running turns are asked to stop."""
    return reply(AgentShape.of(await services.agents.stop(agent, actor=actor, reason=body.reason)))


@router.post(
    "/agents/{agent}/start",
    response_model=AgentShape,
    responses=problems(404, 422),
    summary="Start a stopped agent again",
)
async def start_agent(agent: AgentId, services: AppServices, actor: Actor) -> Response:
    """It may work again; nothing is begun by it."""
    return reply(AgentShape.of(await services.agents.start(agent, actor=actor)))


@router.get(
    "/consolidations",
    response_model=ConsolidationPage,
    responses=problems(404, 422),
    summary="List consolidations of memory, newest first",
)
async def list_consolidations(query: Annotated[ConsolidationsQuery, Query()], services: AppServices) -> Response:
    """A page; pass `next_cursor` as `cursor` to go on."""
    found = await services.consolidations.page(
        session_id=query.session_id,
        state=None if query.state is None else ConsolidationState(query.state),
        before=query.cursor,
        limit=query.limit + 1,
    )
    shown = found[: query.limit]
    page = ConsolidationPage(
        consolidations=[ConsolidationShape.of(item) for item in shown],
        next_cursor=shown[-1].consolidation_id if len(found) > query.limit else None,
    )
    return reply(page)


@router.get(
    "/consolidations/{consolidation_id}",
    response_model=ConsolidationShape,
    responses=problems(404, 422),
    summary="Get a consolidation",
)
async def get_consolidation(consolidation_id: ConsolidationId, services: AppServices) -> Response:
    """What it promoted, from which records, and what it cost."""
    return reply(ConsolidationShape.of(await services.consolidations.get(consolidation_id)))


@router.post(
    "/consolidations/{consolidation_id}/apply",
    response_model=ConsolidationShape,
    responses=problems(404, 409, 422),
    summary="Apply a proposed consolidation",
)
async def apply_consolidation(consolidation_id: ConsolidationId, services: AppServices, actor: Actor) -> Response:
    """Put its texts into their blocks; what does not fit is named and left out."""
    return reply(ConsolidationShape.of(await services.consolidations.apply(consolidation_id, actor=actor)))


@router.post(
    "/consolidations/{consolidation_id}/reject",
    response_model=ConsolidationShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Reject a proposed consolidation",
)
async def reject_consolidation(
    consolidation_id: ConsolidationId, body: ReviewBody, services: AppServices, actor: Actor
) -> Response:
    """Nothing of it gets into a block."""
    done = await services.consolidations.reject(consolidation_id, actor=actor, reason=body.reason)
    return reply(ConsolidationShape.of(done))


@router.post(
    "/consolidations/{consolidation_id}/revert",
    response_model=ConsolidationShape,
    responses=problems(404, 409, 422),
    summary="Revert an applied consolidation",
)
async def revert_consolidation(consolidation_id: ConsolidationId, services: AppServices, actor: Actor) -> Response:
    """Take its texts out of their blocks again; what was written to these since stays."""
    return reply(ConsolidationShape.of(await services.consolidations.revert(consolidation_id, actor=actor)))
