"""Attachments: files that a person gives to a Session, and what a turn's request refers to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from milepost.domain.content import BlobRef

MIB = 1024**2
MAX_IMAGE_BYTES = 10 * MIB
MAX_DOCUMENT_BYTES = 25 * MIB
MAX_TEXT_BYTES = 256 * 1024
"""Of the text that is taken out of a file."""

MAX_PAGES = 2_000
"""Of a PDF document."""

MAX_PIXELS = 50_000_000
"""Of an image."""

MAX_SELECTED = 20
"""Attachments of a Session that a next turn may refer to."""

MAX_ATTACHMENTS = 1_000
"""Attachments of a Session, used and removed ones counted."""

MAX_NAME_CHARACTERS = 255

EXTRACTION_SECONDS = 45
EXTRACTION_MEMORY = 1024 * MIB

NATIVE_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What providers that take images take as they are."""


class AttachmentScope(StrEnum):
    """`ONCE`: the next turn's. `SESSION`: every turn's from now on."""

    ONCE = "once"
    SESSION = "session"


class AttachmentState(StrEnum):
    """What became of a file's text.

    `PENDING`: it waits to be read. `EXTRACTING`: it is being read. `READY`: all there is was taken out. `PARTIAL`: cut
    at a limit. `FAILED`: the file is broken, encrypted, or needs more than the limits allow. `UNSUPPORTED`: no text is
    taken out of such files.
    """

    PENDING = "pending"
    EXTRACTING = "extracting"
    READY = "ready"
    PARTIAL = "partial"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"

    @property
    def settled(self) -> bool:
        return self not in (AttachmentState.PENDING, AttachmentState.EXTRACTING)


@dataclass(frozen=True, slots=True)
class AttachmentRef:
    """A file as a turn's request refers to it, as it was then.

    `blob` is the file, `text` what was taken out of it (UTF-8), `image` a smaller copy of an image, where models need
    one. `note` says what is wrong with the text, or missing.
    """

    attachment_id: str
    name: str
    blob: BlobRef
    state: AttachmentState
    text: BlobRef | None = None
    image: BlobRef | None = None
    note: str | None = None

    @property
    def shown(self) -> BlobRef | None:
        """What a model that sees images gets; None for files that are no images, or cannot be opened."""
        if self.state in (AttachmentState.FAILED, AttachmentState.UNSUPPORTED):
            return None
        found = self.image or self.blob
        return found if found.media_type in NATIVE_IMAGES else None


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file of a Session. Times are microseconds since the epoch, UTC.

    `tried_at` is when somebody last took it in hand to read it. `used_by` is the last turn that took it into the
    conversation; a once-scoped one is used up then. A removed one is no longer selected; what a turn referred to stays
    to be looked at.
    """

    session_id: str
    scope: AttachmentScope
    ref: AttachmentRef
    created_at: int
    tried_at: int = 0
    used_by: str | None = None
    removed_at: int | None = None

    @property
    def selected(self) -> bool:
        """Whether the next turn refers to it."""
        return self.removed_at is None and (self.scope is AttachmentScope.SESSION or self.used_by is None)
