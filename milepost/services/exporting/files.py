"""The files of a turn in the HTML page: their names, and images where they first appear."""

from __future__ import annotations

import base64
import html
from collections.abc import AsyncGenerator
from contextlib import aclosing

from milepost.domain.attachments import AttachmentRef
from milepost.domain.content import BlobRef
from milepost.domain.errors import BlobNotFound
from milepost.domain.turns import Turn
from milepost.services.contents import Contents
from milepost.services.exporting.texts import clean, one_line, size_words

MAX_IMAGE_BYTES = 4 * 1024 * 1024
"""A larger image is named and not shown; the JSON export has it."""


class AttachedFiles:
    """Writes the files of turns. An image that several turns refer to is a part of the page once."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._shown: set[str] = set()

    async def of(self, turn: Turn) -> AsyncGenerator[str, None]:
        """The list of a turn's files, in pieces."""
        if not turn.request.attachments:
            return
        yield '<ul class="files" aria-label="Attached files">\n'
        for ref in turn.request.attachments:
            name, kind = _escape(one_line(ref.name, 300)), _escape(one_line(ref.blob.media_type, 100))
            yield f"<li><b>{name}</b> <span>{kind}, {size_words(ref.blob.size)}</span>"
            async with aclosing(self._image(ref)) as pieces:
                async for piece in pieces:
                    yield piece
            yield "</li>\n"
        yield "</ul>\n"

    async def _image(self, ref: AttachmentRef) -> AsyncGenerator[str, None]:
        shown = ref.shown
        if shown is None or shown.size > MAX_IMAGE_BYTES or shown.digest in self._shown:
            return
        self._shown.add(shown.digest)
        begun = False
        try:
            async with aclosing(_base64(self._contents, shown)) as pieces:
                async for piece in pieces:
                    # Only now is it known that the bytes are there. The type is one of a few, and needs no escaping.
                    yield piece if begun else f'<img alt="" src="data:{shown.media_type};base64,{piece}'
                    begun = True
                if begun:
                    yield '">'
        except BlobNotFound:
            if begun:
                yield '">'


async def _base64(contents: Contents, blob: BlobRef) -> AsyncGenerator[str, None]:
    held = b""
    async with aclosing(contents.bytes_of(blob)) as pieces:
        async for piece in pieces:
            held += piece
            # Texts of whole groups of three bytes can be joined.
            whole = len(held) - len(held) % 3
            yield base64.b64encode(held[:whole]).decode("ascii")
            held = held[whole:]
    yield base64.b64encode(held).decode("ascii")


def _escape(text: str) -> str:
    return html.escape(clean(text), quote=True)
