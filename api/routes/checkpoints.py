"""Checkpoints of a Session on this host."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.dependencies import AppServices, SessionId
from api.documentation import problems
from api.responses import reply
from api.schemas.checkpoints import (
    CheckpointBody,
    CheckpointList,
    CheckpointsDiscarded,
    CheckpointShape,
    CheckpointsQuery,
    RecoverBody,
    RecoveryShape,
)

router = APIRouter(prefix="/api/v1", tags=["checkpoints"])


@router.get(
    "/sessions/{session_id}/checkpoints",
    response_model=CheckpointList,
    responses=problems(404, 422),
    summary="List a Session's checkpoints",
)
async def list_checkpoints(
    session_id: SessionId, query: Annotated[CheckpointsQuery, Query()], services: AppServices
) -> Response:
    """Those of this host, by agent, newest first, each with what it holds or why it cannot be used."""
    found = await services.checkpoints.of_session(session_id, query.agent)
    return reply(CheckpointList(session_id=session_id, checkpoints=[CheckpointShape.of(view) for view in found]))


@router.post(
    "/sessions/{session_id}/checkpoints",
    response_model=CheckpointList,
    responses=problems(400, 404, 413, 422),
    summary="Write checkpoints now",
)
async def write_checkpoints(session_id: SessionId, body: CheckpointBody, services: AppServices) -> Response:
    """Make a checkpoint of each agent's conversation from the ledger; a running turn is left out."""
    made = await services.checkpoints.write(session_id, body.agent)
    return reply(CheckpointList(session_id=session_id, checkpoints=[CheckpointShape.of(view) for view in made]))


@router.post(
    "/sessions/{session_id}/checkpoints/discard",
    response_model=CheckpointsDiscarded,
    responses=problems(400, 404, 413, 422),
    summary="Discard a Session's checkpoints",
)
async def discard_checkpoints(session_id: SessionId, body: CheckpointBody, services: AppServices) -> Response:
    """Nothing is lost by it: the next one is made from the ledger."""
    count = await services.checkpoints.discard(session_id, body.agent)
    return reply(CheckpointsDiscarded(session_id=session_id, discarded=count))


@router.post(
    "/sessions/{session_id}/checkpoints/recover",
    response_model=RecoveryShape,
    responses=problems(400, 404, 409, 413, 422),
    summary="Recover a Session from checkpoints of before 1.0",
)
async def recover_session(session_id: SessionId, body: RecoverBody, services: AppServices) -> Response:
    """Give a Session without turns those of the newest readable old checkpoint; the old files stay as they are."""
    return reply(RecoveryShape.of(await services.recovery.recover(session_id, body.name)))
