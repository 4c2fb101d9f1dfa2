"""Keeping long texts: whole in the event up to 256 KiB, else in the blob store with a preview in the event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing

from milepost.domain.content import INLINE_LIMIT_BYTES, PREVIEW_LIMIT_BYTES, BlobRef, Content
from milepost.ports.blobs import BlobStore

TEXT = "text/plain; charset=utf-8"


def text_bytes(text: str) -> bytes:
    """UTF-8 that also carries lone surrogates, so that any Python string survives."""
    return text.encode("utf-8", "surrogatepass")


class Contents:
    """Stores and loads `Content` values."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def store(self, text: str, media_type: str = TEXT, *, preview: int = PREVIEW_LIMIT_BYTES) -> Content:
        """Durably keep a text of any length; of one that becomes a blob `preview` bytes stay at hand.

        Raises StorageUnavailable.
        """
        # A character is at most 4 bytes, so short texts need no encoding to know that they fit.
        if len(text) * 4 <= INLINE_LIMIT_BYTES:
            return Content(text)
        data = text_bytes(text)
        if len(data) <= INLINE_LIMIT_BYTES:
            return Content(text)
        ref = await self._blobs.put(data, media_type)
        return Content(data[:preview].decode("utf-8", "ignore"), ref)

    async def store_bytes(self, pieces: AsyncIterable[bytes], media_type: str) -> BlobRef:
        """Durably keep bytes of any length as a blob. Raises StorageUnavailable."""
        return await self._blobs.put_pieces(pieces, media_type)

    async def load(self, content: Content) -> str:
        """The whole text. Raises BlobNotFound."""
        if content.blob is None:
            return content.text
        return (await self._blobs.get(content.blob)).decode("utf-8", "surrogatepass")

    async def load_bytes(self, blob: BlobRef) -> bytes:
        """The whole of a blob that is no text. Raises BlobNotFound."""
        return await self._blobs.get(blob)

    async def stream(self, content: Content) -> AsyncGenerator[bytes, None]:
        """The whole text as bytes (see `text_bytes`) in bounded pieces. Raises BlobNotFound."""
        if content.blob is None:
            yield text_bytes(content.text)
            return
        async with aclosing(self.bytes_of(content.blob)) as pieces:
            async for piece in pieces:
                yield piece

    async def bytes_of(self, ref: BlobRef) -> AsyncGenerator[bytes, None]:
        """A blob's bytes in bounded pieces. Raises BlobNotFound."""
        async with aclosing(self._blobs.stream(ref)) as pieces:
            async for piece in pieces:
                yield piece
