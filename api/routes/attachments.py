"""Attachments: files that a Session's turns refer to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from api.dependencies import AppServices, AttachmentId, SessionId
from api.documentation import problems
from api.responses import reply
from api.schemas.attachments import AttachmentList, AttachmentShape, AttachmentsQuery, AttachQuery

router = APIRouter(prefix="/api/v1", tags=["attachments"])

PIECE_SECONDS = 60.0
"""How long the next piece of a file may take."""

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The file; by default images of at most 10 MiB and others of at most 25 MiB are accepted.",
        "content": {"application/octet-stream": _BINARY},
    }
}
_CONTENT: dict[str, Any] = {"description": "The file.", "content": {"application/octet-stream": _BINARY}}
_TEXT: dict[str, Any] = {"description": "The text.", "content": {"text/plain": {"schema": {"type": "string"}}}}


@router.post(
    "/sessions/{session_id}/attachments",
    status_code=201,
    response_model=AttachmentShape,
    responses=problems(400, 404, 409, 413, 422),
    openapi_extra=_FILE,
    summary="Attach a file",
)
async def attach(
    session_id: SessionId, request: Request, query: Annotated[AttachQuery, Query()], services: AppServices
) -> Response:
    """The file is the body. `state` says what became of its text; one that cannot be read is attached all the same."""
    async with aclosing(_pieces(request)) as pieces:
        done = await services.attachments.attach(query.file(session_id), pieces, wait=query.wait)
    location = {"Location": f"/api/v1/attachments/{done.ref.attachment_id}"}
    return reply(AttachmentShape.of(done), 201, location)


@router.get(
    "/sessions/{session_id}/attachments",
    response_model=AttachmentList,
    responses=problems(404, 422),
    summary="List a Session's attachments",
)
async def list_attachments(
    session_id: SessionId, query: Annotated[AttachmentsQuery, Query()], services: AppServices
) -> Response:
    """Newest first, removed and used ones too; or those that the next turn gets."""
    attachments, more = services.attachments, None
    if query.selected:
        found = await attachments.selected(session_id)
    else:
        found = await attachments.page(session_id, before=query.cursor, limit=query.limit)
        more = found[-1].ref.attachment_id if len(found) == query.limit else None
    shapes = [AttachmentShape.of(item) for item in found]
    return reply(AttachmentList(session_id=session_id, attachments=shapes, next_cursor=more))


@router.get(
    "/attachments/{attachment_id}", response_model=AttachmentShape, responses=problems(404), summary="Get an attachment"
)
async def get_attachment(attachment_id: AttachmentId, services: AppServices) -> Response:
    """One attachment, without its bytes."""
    return reply(AttachmentShape.of(await services.attachments.get(attachment_id)))


@router.delete(
    "/attachments/{attachment_id}",
    response_model=AttachmentShape,
    responses=problems(404),
    summary="Remove an attachment",
)
async def remove_attachment(attachment_id: AttachmentId, services: AppServices) -> Response:
    """Later turns do not get it. One that a turn has used can still be looked at; one that none has used is gone."""
    return reply(AttachmentShape.of(await services.attachments.remove(attachment_id)))


@router.get(
    "/attachments/{attachment_id}/text",
    response_class=Response,
    responses={200: _TEXT, **problems(404)},
    summary="Get an attachment's text",
)
async def attachment_text(attachment_id: AttachmentId, services: AppServices) -> Response:
    """What was taken out of the file, as models get it; at most 256 KiB."""
    text = await services.attachments.text(attachment_id)
    headers = {"X-Content-Type-Options": "nosniff"}
    return Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=headers)


@router.get(
    "/attachments/{attachment_id}/content",
    response_class=Response,
    responses={200: _CONTENT, **problems(404)},
    summary="Get an attachment's bytes",
)
async def attachment_content(attachment_id: AttachmentId, services: AppServices) -> Response:
    """Always a download: a browser neither shows nor runs it."""
    ref = (await services.attachments.get(attachment_id)).ref
    pieces = services.contents.bytes_of(ref.blob)
    # Before the answer begins, so that missing bytes are an error and not a short file.
    first = await anext(pieces, b"")
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(ref.name, safe='', errors='replace')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Content-Length": str(ref.blob.size),
    }
    return StreamingResponse(_from(first, pieces), media_type="application/octet-stream", headers=headers)


async def _from(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(pieces):
        yield first
        async for piece in pieces:
            yield piece


async def _pieces(request: Request) -> AsyncGenerator[bytes, None]:
    pieces = aiter(request.stream())
    try:
        while True:
            async with asyncio.timeout(PIECE_SECONDS):
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield piece
    except TimeoutError:
        raise HTTPException(408, f"Nothing of the body came for {PIECE_SECONDS:.0f} s.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The connection was closed before the body's end.") from None
