"""Long texts as `text/plain`, in pieces as they are read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
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


async def text_response(services: Services, content: Content) -> Response:
    """The whole text of a content; of a blob never more than some pieces are in memory.

    A blob that turns out to be damaged ends the response before its announced length, so that no client takes it for
    whole. Raises BlobNotFound if it is missing.
    """
    if content.blob is None:
        return Response(text_bytes(content.text), media_type=TEXT)
    pieces = services.contents.stream(content)
    first = await anext(pieces, b"")
    return StreamingResponse(_from(first, pieces), media_type=TEXT, headers={"Content-Length": str(content.blob.size)})


async def _from(first: bytes, pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(pieces):
        yield first
        async for piece in pieces:
            yield piece
