"""Exports: a Session as a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from api.dependencies import AppServices, SessionId
from api.documentation import problems
from api.schemas.exports import ExportQuery
from milepost.services.exporting.html import policy
from milepost.services.exporting.service import ExportFormat

router = APIRouter(prefix="/api/v1", tags=["exports"])

_TYPES = {
    ExportFormat.JSON: "application/json",
    ExportFormat.MARKDOWN: "text/markdown; charset=utf-8",
    ExportFormat.HTML: "text/html; charset=utf-8",
}
_ANSWER: dict[str, Any] = {
    "description": "The document.",
    "content": {kind.split(";")[0]: {"schema": {"type": "string"}} for kind in _TYPES.values()},
}
_ANSWER["content"]["application/json"] = {"schema": {"type": "object"}}


@router.get(
    "/sessions/{session_id}/export",
    response_class=Response,
    responses={200: _ANSWER, **problems(404, 422)},
    summary="Export a Session",
)
async def export_session(
    session_id: SessionId, query: Annotated[ExportQuery, Query()], services: AppServices
) -> Response:
    """A document of any length, sent as it is made: lossless JSON, Markdown, or one HTML page.

    If it cannot be gone on with, the connection is cut before the document's end.
    """
    wanted = ExportFormat(query.format)
    pieces = await services.exports.export(session_id, wanted, superseded=query.superseded)
    first = await anext(pieces, b"")
    headers = {"Content-Disposition": f'attachment; filename="{session_id}.{wanted.value}"'}
    if wanted is ExportFormat.HTML:
        headers["Content-Security-Policy"] = f"{policy()}; frame-ancestors 'none'; sandbox allow-scripts"
    return StreamingResponse(_from(first, pieces), media_type=_TYPES[wanted], headers=headers)


async def _from(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(pieces):
        yield first
        async for piece in pieces:
            yield piece
