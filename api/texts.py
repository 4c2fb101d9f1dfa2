"""Long texts as `text/plain`, sent in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from milepost.domain.content import Content
from milepost.services.catalog import Services
from milepost.services.contents import text_bytes

TEXT = "text/plain; charset=utf-8"
TEXT_RESPONSE: dict[str, Any] = {
    "description": "The text. A lone surrogate is sent as the three bytes it would have in UTF-8.",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}
PIECE_BYTES = 64 * 1024


async def text_response(services: Services, content: Content) -> Response:
    """The whole text of a content. Raises BlobNotFound."""
    if content.blob is None:
        return Response(text_bytes(content.text), media_type=TEXT)
    data = text_bytes(await services.contents.load(content))
    return StreamingResponse(_pieces(data), media_type=TEXT, headers={"Content-Length": str(len(data))})


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    view = memoryview(data)
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(view[start : start + PIECE_BYTES])
