"""Attachments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.schemas.base import Query, Shape
from api.schemas.sessions import ID_PATTERN, MAX_LIMIT
from api.times import rfc3339, rfc3339_or_none
from milepost.domain.attachments import MAX_NAME_CHARACTERS, Attachment, AttachmentScope
from milepost.services.attachments import NewFile


class AttachQuery(Query):
    """The file's name, and for which turns it is."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]
    """What people and models see; never used as a path."""
    scope: Literal["once", "session"] = "session"
    """`once`: the next turn. `session`: every turn from now on."""
    wait: bool = True
    """Whether the answer comes when the file's text has been taken out, or as soon as the file is kept."""

    def file(self, session_id: str) -> NewFile:
        return NewFile(session_id, self.name, AttachmentScope(self.scope))


class AttachmentsQuery(Query):
    """Which attachments of a Session."""

    selected: bool = False
    """Only those that the next turn gets, in their order; there are few, so these have no pages."""
    cursor: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50


class AttachmentShape(Shape):
    """A file of a Session. `state` says what became of its text, `note` what is wrong with it or missing.

    `media_type` is what its bytes are, whatever its name says. `used_by` is the turn that took it into the
    conversation; `selected` tells whether the next turn gets it.
    """

    attachment_id: str
    session_id: str
    name: str
    scope: str
    media_type: str
    size: int
    sha256: str
    state: str
    note: str | None
    text_bytes: int
    selected: bool
    created_at: str
    used_by: str | None
    removed_at: str | None

    @classmethod
    def of(cls, item: Attachment) -> AttachmentShape:
        ref = item.ref
        return cls(
            attachment_id=ref.attachment_id,
            session_id=item.session_id,
            name=ref.name,
            scope=item.scope.value,
            media_type=ref.blob.media_type,
            size=ref.blob.size,
            sha256=ref.blob.digest,
            state=ref.state.value,
            note=ref.note,
            text_bytes=0 if ref.text is None else ref.text.size,
            selected=item.selected,
            created_at=rfc3339(item.created_at),
            used_by=item.used_by,
            removed_at=rfc3339_or_none(item.removed_at),
        )


class AttachmentList(Shape):
    """Attachments of a Session. `next_cursor` continues the list, null at its end."""

    session_id: str
    attachments: list[AttachmentShape]
    next_cursor: str | None
