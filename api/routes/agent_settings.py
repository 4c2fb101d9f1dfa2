"""Agents of the configuration: read, added, changed and removed in the file."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from api.dependencies import AppServices
from api.documentation import problems
from api.responses import reply
from api.schemas.agent_settings import AgentAdd, AgentChange, AgentSettingsShape

router = APIRouter(prefix="/api/v1", tags=["agents"])

AgentId = Annotated[str, Path(description="Id of an agent.", max_length=200)]


@router.get(
    "/agents/{agent_id}", response_model=AgentSettingsShape, responses=problems(404, 422), summary="Show an agent"
)
async def show_agent(agent_id: AgentId, services: AppServices) -> Response:
    """What stands in the file, and what is in force."""
    return reply(AgentSettingsShape.of(await asyncio.to_thread(services.agent_settings.get, agent_id)))


@router.post(
    "/agents",
    status_code=201,
    response_model=AgentSettingsShape,
    responses=problems(400, 409, 413, 422),
    summary="Add an agent",
)
async def add_agent(body: AgentAdd, services: AppServices) -> Response:
    """Checked with the whole configuration before anything is written. Counts from the next turn on."""
    found = await asyncio.to_thread(services.agent_settings.add, body.agent_id, body.settings)
    return reply(AgentSettingsShape.of(found), 201, {"Location": f"/api/v1/agents/{found.agent_id}"})


@router.patch(
    "/agents/{agent_id}",
    response_model=AgentSettingsShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Change an agent",
)
async def change_agent(agent_id: AgentId, body: AgentChange, services: AppServices) -> Response:
    """Comments, order and everything else of the file stay. A running turn keeps what it began with."""
    return reply(
        AgentSettingsShape.of(await asyncio.to_thread(services.agent_settings.change, agent_id, body.settings))
    )


@router.delete("/agents/{agent_id}", status_code=204, responses=problems(404, 409, 422), summary="Remove an agent")
async def remove_agent(agent_id: AgentId, services: AppServices) -> Response:
    """Sessions of it stay; their next turn needs another agent."""
    await asyncio.to_thread(services.agent_settings.remove, agent_id)
    return Response(status_code=204)
