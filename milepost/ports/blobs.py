"""The blob store port: immutable bytes by SHA-256."""

from __future__ import annotations

from typing import Protocol

from milepost.domain.content import BlobRef


class BlobStore(Protocol):
    async def put(self, data: bytes, media_type: str) -> BlobRef:
        """Store durably before returning; the same bytes are stored once. Raises StorageUnavailable."""

    async def get(self, ref: BlobRef) -> bytes:
        """The bytes, digest checked. Raises BlobNotFound if they are missing or damaged."""

    async def exists(self, ref: BlobRef) -> bool: ...
