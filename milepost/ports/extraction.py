"""The extraction port: text out of files that anybody may have made."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Protocol

from milepost.domain.attachments import AttachmentState


@dataclass(frozen=True, slots=True)
class Extracted:
    """`media_type` is what the bytes are, whatever the file's name says.

    `image` is a copy of an image for models, of type `image_type`, where they could not take the file as it is.
    """

    state: AttachmentState
    media_type: str
    text: str = ""
    note: str | None = None
    image: bytes | None = None
    image_type: str = ""


class Extractor(Protocol):
    async def extract(self, pieces: AsyncIterable[bytes], name: str) -> Extracted:
        """Read a file. What is wrong with it is no exception, but a state with a note that says so.

        Raises what reading `pieces` raises.
        """
