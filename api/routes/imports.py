"""Imports: a Session from a file."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from api.dependencies import AppServices
from api.documentation import problems
from api.responses import reply
from api.schemas.imports import ImportedShape, ImportQuery
from milepost.domain.errors import PayloadTooLarge, StorageUnavailable

router = APIRouter(prefix="/api/v1", tags=["exports"])

MAX_BYTES = 8 * 1024 * 1024 * 1024
PIECE_SECONDS = 60.0
"""How long the next piece of the file may take."""

_FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A lossless JSON export, or a transcript as JSON lines; at most 8 GiB.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post(
    "/imports",
    status_code=201,
    response_model=ImportedShape,
    responses={
        200: {"model": ImportedShape, "description": "The file had been imported before; nothing was changed."},
        **problems(400, 413, 422),
    },
    openapi_extra=_FILE,
    summary="Import a Session",
)
async def import_session(request: Request, query: Annotated[ImportQuery, Query()], services: AppServices) -> Response:
    """The file is the body. All of it is checked before anything is written: a fault is a 422 with line and reason."""
    with tempfile.TemporaryFile(dir=services.imports.spool) as file:
        await _receive(request, file)
        done = await services.imports.load(file, query.command())
    return reply(
        ImportedShape.of(done), 201 if done.created else 200, {"Location": f"/api/v1/sessions/{done.session_id}"}
    )


async def _receive(request: Request, file: BinaryIO) -> None:
    size = 0
    pieces = aiter(request.stream())
    try:
        while True:
            async with asyncio.timeout(PIECE_SECONDS):
                piece = await anext(pieces, None)
            if piece is None:
                return
            size += len(piece)
            if size > MAX_BYTES:
                raise PayloadTooLarge.of("import", "file", size, MAX_BYTES)
            await asyncio.to_thread(file.write, piece)
    except TimeoutError:
        raise HTTPException(408, f"Nothing of the body came for {PIECE_SECONDS:.0f} s.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The connection was closed before the body's end.") from None
    except OSError as error:
        raise StorageUnavailable(
            f"The file cannot be kept while it comes in: {error.strerror or error}.", fix="Free disk space."
        ) from error
