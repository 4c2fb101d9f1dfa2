"""The blob store port: immutable bytes by SHA-256."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from typing import Protocol

from milepost.domain.content import BlobRef


class BlobStore(Protocol):
    async def put(self, data: bytes, media_type: str) -> BlobRef:
        """Store durably before returning; the same bytes are stored once. Raises StorageUnavailable."""

    async def put_pieces(self, pieces: AsyncIterable[bytes], media_type: str) -> BlobRef:
        """The same for bytes that are too long to be held in memory."""

    async def get(self, ref: BlobRef) -> bytes:
        """The bytes, digest checked. Raises BlobNotFound if they are missing or damaged."""

    def stream(self, ref: BlobRef) -> AsyncGenerator[bytes, None]:
        """The bytes in bounded pieces, for what is too long to be held in memory. Close it when done with it early.

        Raises:
            BlobNotFound: before the first piece if they are missing; if they are damaged, in place of the last piece.
        """

    async def exists(self, ref: BlobRef) -> bool: ...
