"""An agent's memory: read, edited, searched and forgotten by a person."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.responses import Response, StreamingResponse

from api.dependencies import Actor, AppServices, SessionId
from api.documentation import problems
from api.responses import reply
from api.schemas.memory import (
    BlockBody,
    BlockHistoryShape,
    BlocksShape,
    EntryShape,
    ForgetBody,
    ForgottenShape,
    LogPage,
    LogQuery,
    RecallBody,
    RecallShape,
    RecordPage,
    RecordShape,
    RecordsQuery,
    RecordsReindexBody,
    RecordsReindexStep,
    RevertBody,
    SessionMemoryShape,
    VersionShape,
)
from api.times import microseconds

router = APIRouter(prefix="/api/v1", tags=["memory"])

Owner = Annotated[str, Path(max_length=300, description="Name of an agent, or COORDINATOR:worker:WORKER.")]
Label = Annotated[str, Path(max_length=64, description="Label of a core block.")]
_LINES: dict[str, Any] = {
    "description": "JSON lines.",
    "content": {"application/jsonl": {"schema": {"type": "string"}}},
}


@router.get(
    "/sessions/{session_id}/memory",
    response_model=SessionMemoryShape,
    responses=problems(404, 503),
    summary="Whose memory a Session has",
)
async def session_memory(session_id: SessionId, services: AppServices) -> Response:
    """Blocks, dates and counts by owner, and what is still to be written."""
    return reply(SessionMemoryShape.of(session_id, await services.memory.session(session_id)))


@router.post(
    "/sessions/{session_id}/memory/rebuild",
    status_code=202,
    response_model=SessionMemoryShape,
    responses=problems(404, 409, 503),
    summary="Make a Session's memory anew from the ledger",
)
async def rebuild_memory(session_id: SessionId, services: AppServices) -> Response:
    """It is done by a worker; until then `waiting` has it. What was forgotten stays so. A running turn is a 409."""
    await services.memory.rebuild(session_id)
    return reply(SessionMemoryShape.of(session_id, await services.memory.session(session_id)), 202)


@router.get(
    "/sessions/{session_id}/memory/{owner}/blocks",
    response_model=BlocksShape,
    responses=problems(404, 422, 503),
    summary="List an agent's core blocks",
)
async def list_blocks(session_id: SessionId, owner: Owner, services: AppServices) -> Response:
    """With their values."""
    return reply(BlocksShape.of(await services.memory.blocks(session_id, owner)))


@router.get(
    "/sessions/{session_id}/memory/{owner}/blocks/{label}",
    response_model=BlockHistoryShape,
    responses=problems(404, 422, 503),
    summary="Read a core block and its history",
)
async def read_block(session_id: SessionId, owner: Owner, label: Label, services: AppServices) -> Response:
    """With the versions that are kept, newest first."""
    return reply(BlockHistoryShape.of(await services.memory.block(session_id, owner, label)))


@router.put(
    "/sessions/{session_id}/memory/{owner}/blocks/{label}",
    response_model=VersionShape,
    responses=problems(400, 404, 409, 413, 422, 503),
    summary="Write a core block",
)
async def write_block(
    session_id: SessionId, owner: Owner, label: Label, body: BlockBody, services: AppServices, actor: Actor
) -> Response:
    """A new version; agents see it with their next turn's request. A shared block changes for all that have it."""
    version = await services.memory.write(
        session_id, owner, label, body.value, actor, expected=body.expected_version, note=body.note
    )
    return reply(VersionShape.of(version))


@router.post(
    "/sessions/{session_id}/memory/{owner}/blocks/{label}/revert",
    response_model=VersionShape,
    responses=problems(400, 404, 409, 413, 422, 503),
    summary="Revert a core block",
)
async def revert_block(
    session_id: SessionId, owner: Owner, label: Label, body: RevertBody, services: AppServices, actor: Actor
) -> Response:
    """A new version with the value of an earlier one."""
    return reply(
        VersionShape.of(await services.memory.revert(session_id, owner, label, body.to, actor, note=body.note))
    )


@router.get(
    "/sessions/{session_id}/memory/{owner}/log",
    response_model=LogPage,
    responses=problems(404, 422, 503),
    summary="Read an agent's daily log, oldest entry first",
)
async def read_log(
    session_id: SessionId, owner: Owner, query: Annotated[LogQuery, Query()], services: AppServices
) -> Response:
    """A page of a range of time; pass `next_cursor` as `cursor` to go on."""
    found = await services.memory.log(
        session_id,
        owner,
        None if query.start is None else microseconds(query.start, "from"),
        None if query.end is None else microseconds(query.end, "to"),
        after=query.after,
        limit=query.limit + 1,
    )
    shown = found[: query.limit]
    more = len(found) > query.limit
    cursor = f"{shown[-1].entry.at}/{shown[-1].entry.id}" if more else None
    return reply(LogPage(entries=[EntryShape.of(entry) for entry in shown], next_cursor=cursor))


@router.get(
    "/sessions/{session_id}/memory/{owner}/records",
    response_model=RecordPage,
    responses=problems(404, 422, 503),
    summary="List what an agent can recall, newest first",
)
async def list_recallable(
    session_id: SessionId, owner: Owner, query: Annotated[RecordsQuery, Query()], services: AppServices
) -> Response:
    """A page; pass `next_cursor` as `cursor` to go on."""
    found = await services.memory.records(session_id, owner, before=query.cursor, limit=query.limit + 1)
    shown = found[: query.limit]
    cursor = shown[-1].position if len(found) > query.limit else None
    return reply(RecordPage(records=[RecordShape.of(record) for record in shown], next_cursor=cursor))


@router.post(
    "/sessions/{session_id}/memory/{owner}/recall",
    response_model=RecallShape,
    responses=problems(400, 404, 409, 413, 422, 503),
    summary="Search an agent's memory as the agent would",
)
async def recall_records(session_id: SessionId, owner: Owner, body: RecallBody, services: AppServices) -> Response:
    """Records with their scores and reasons, best first."""
    found = await services.memory.recall(session_id, owner, body.query, limit=body.k, min_score=body.min_score)
    return reply(RecallShape.of(found))


@router.post(
    "/sessions/{session_id}/memory/{owner}/forget",
    response_model=ForgottenShape,
    responses=problems(400, 404, 413, 422, 503),
    summary="Forget records for good",
)
async def forget_records(
    session_id: SessionId, owner: Owner, body: ForgetBody, services: AppServices, actor: Actor
) -> Response:
    """They are not recalled any more. The turns that they came from stay in the ledger."""
    return reply(ForgottenShape(forgotten=await services.memory.forget(session_id, owner, body.ids, actor)))


@router.post(
    "/sessions/{session_id}/memory/{owner}/reindex",
    response_model=RecordsReindexStep,
    responses=problems(400, 404, 409, 413, 422, 503),
    summary="Make the vectors of an agent's records anew, for some seconds",
)
async def reindex_records(
    session_id: SessionId, owner: Owner, body: RecordsReindexBody, services: AppServices
) -> Response:
    """With the configured embedder. Until it is `finished`, send `after` with the next request."""
    return reply(RecordsReindexStep.of(await services.memory.reindex(session_id, owner, body.after)))


@router.get(
    "/sessions/{session_id}/memory/{owner}/export",
    response_class=Response,
    responses={200: _LINES, **problems(404, 422, 503)},
    summary="Export all that an agent has in memory",
)
async def export_memory(session_id: SessionId, owner: Owner, services: AppServices) -> Response:
    """JSON lines, each with a `type`: `block` (a version), `entry` of the daily log, `record`."""
    pieces = await services.memory.export(session_id, owner)
    return StreamingResponse(_from(pieces), media_type="application/jsonl")


async def _from(pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(pieces):
        async for piece in pieces:
            yield piece


@router.get("/shared-blocks", response_model=BlocksShape, responses=problems(503), summary="List shared core blocks")
async def list_shared_blocks(services: AppServices) -> Response:
    """Those that agents of the configuration declare."""
    return reply(BlocksShape.of(await services.memory.shared()))


@router.get(
    "/shared-blocks/{label}",
    response_model=BlockHistoryShape,
    responses=problems(404, 422, 503),
    summary="Read a shared core block and its history",
)
async def read_shared_block(label: Label, services: AppServices) -> Response:
    """With the versions that are kept, newest first."""
    return reply(BlockHistoryShape.of(await services.memory.block(None, "", label)))


@router.put(
    "/shared-blocks/{label}",
    response_model=VersionShape,
    responses=problems(400, 404, 409, 413, 422, 503),
    summary="Write a shared core block",
)
async def write_shared_block(label: Label, body: BlockBody, services: AppServices, actor: Actor) -> Response:
    """A new version for all agents that have it."""
    version = await services.memory.write(
        None, "", label, body.value, actor, expected=body.expected_version, note=body.note
    )
    return reply(VersionShape.of(version))


@router.post(
    "/shared-blocks/{label}/revert",
    response_model=VersionShape,
    responses=problems(400, 404, 409, 413, 422, 503),
    summary="Revert a shared core block",
)
async def revert_shared_block(label: Label, body: RevertBody, services: AppServices, actor: Actor) -> Response:
    """A new version with the value of an earlier one."""
    return reply(VersionShape.of(await services.memory.revert(None, "", label, body.to, actor, note=body.note)))
