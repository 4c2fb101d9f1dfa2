"""Text that may be too long to live inside an event."""

from __future__ import annotations

from dataclasses import dataclass

INLINE_LIMIT_BYTES = 256 * 1024
"""Up to this size a text is kept inside the event; beyond, it is a blob and the event keeps a preview."""

PREVIEW_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Reference to immutable bytes. `digest` is the lowercase hexadecimal SHA-256; `size` is bytes."""

    digest: str
    size: int
    media_type: str


@dataclass(frozen=True, slots=True)
class Content:
    """A text: whole when `blob` is None, else a preview (at most 64 KiB) of the text that the blob holds whole."""

    text: str
    blob: BlobRef | None = None
