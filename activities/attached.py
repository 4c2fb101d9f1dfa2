"""The files of requests as a model gets them: texts and images, each file once in a conversation."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace

from milepost.domain.attachments import AttachmentRef
from milepost.domain.content import BlobRef, Content
from milepost.domain.errors import BlobNotFound
from milepost.domain.messages import ImagePart, Message, UserMessage
from milepost.ledger.attached import GIVEN_CHARACTERS, INTRODUCTION, attached_text
from milepost.ledger.transcript import Part
from milepost.services.contents import Contents

MAX_TEXT_CHARACTERS = 256_000
"""Of all files of a conversation together. The newest come first; of others only the names are told."""

CHARACTERS_PER_TOKEN = 2
"""Of the model's window, for files: some four characters are a token, and half of the window is for the rest."""

LEAST_CHARACTERS = 1_000
"""A shorter beginning of a text is not given."""

MAX_IMAGES = 20
MAX_IMAGE_BYTES = 12 * 1024 * 1024
"""Of all images of a conversation together, before they are written as base64."""

LEFT_OUT = "There was no room for this file's text; the tool read_attachment, where it is offered, reads it."
IMAGE_LEFT_OUT = "There was no room for this image beside newer ones."


@dataclass(slots=True)
class _Given:
    """A file at the place where it is given. `limit` is the characters of its text."""

    message: int
    ref: AttachmentRef
    limit: int = 0
    image: bool = False


class Attached:
    """Loads files for requests."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    async def given(self, parts: Sequence[Part], window: int | None = None) -> list[Part]:
        """The parts with files turned into text and images, the same for the same parts and `window` (tokens)."""
        room = MAX_TEXT_CHARACTERS if window is None else min(MAX_TEXT_CHARACTERS, window * CHARACTERS_PER_TOKEN)
        by_message: dict[int, list[_Given]] = {}
        for item in _placed([message for part in parts for message in part.messages], room):
            by_message.setdefault(item.message, []).append(item)
        if not by_message:
            return list(parts)
        done, number = [], 0
        for part in parts:
            messages: list[Message] = []
            for message in part.messages:
                files = by_message.get(number, ())
                messages.append(await self._filled(message, files) if isinstance(message, UserMessage) else message)
                number += 1
            done.append(replace(part, messages=tuple(messages)))
        return done

    async def _filled(self, message: UserMessage, files: Sequence[_Given]) -> UserMessage:
        if not files:
            return UserMessage(message.text, message.images, message.before)
        images = [*message.images]
        texts = [await self._contents.load(message.text), INTRODUCTION]
        for item in files:
            image = await self._image(item)
            images += image
            texts.append(await self._file(item, image=bool(image)))
        return UserMessage(Content("\n\n".join(texts)), tuple(images), message.before)

    async def _file(self, item: _Given, *, image: bool) -> str:
        ref = item.ref
        text = None
        if ref.text is not None and item.limit:
            data = await self._bytes(ref.text)
            text = None if data is None else data.decode("utf-8", "replace")
        made = attached_text(ref, text, limit=item.limit, image=image)
        left_out = [LEFT_OUT] if ref.text is not None and not item.limit else []
        left_out += [IMAGE_LEFT_OUT] if ref.shown is not None and not item.image else []
        return "\n".join([made, *(f"[{ref.name!r}: {each}]" for each in left_out)])

    async def _image(self, item: _Given) -> list[ImagePart]:
        shown = item.ref.shown
        data = await self._bytes(shown) if item.image and shown is not None else None
        if data is None or shown is None:
            return []
        return [ImagePart(shown, item.ref.name, base64.b64encode(data).decode("ascii"))]

    async def _bytes(self, blob: BlobRef) -> bytes | None:
        try:
            return await self._contents.load_bytes(blob)
        except BlobNotFound:
            # What is lost of a file (see `milepost verify`) shall not end every later turn.
            return None


def _placed(messages: Sequence[Message], room: int) -> list[_Given]:
    """Each file where the conversation first refers to it, with its share of the room; newer files get theirs first."""
    seen: set[tuple[str, str]] = set()
    placed: list[_Given] = []
    for number, message in enumerate(messages):
        for ref in message.files if isinstance(message, UserMessage) else ():
            # By content: the same file may have been attached twice, or wait to be read at first.
            key = (ref.blob.digest, f"{ref.name}/{ref.state.settled}")
            if key not in seen:
                seen.add(key)
                placed.append(_Given(number, ref))
    text, images, size = room, 0, 0
    for item in reversed(placed):
        if item.ref.text is not None:
            # A character has at least one byte.
            wanted = min(GIVEN_CHARACTERS, item.ref.text.size)
            item.limit = min(wanted, text) if text >= min(wanted, LEAST_CHARACTERS) else 0
            text -= item.limit
        shown = item.ref.shown
        if shown is not None and images < MAX_IMAGES and size + shown.size <= MAX_IMAGE_BYTES:
            item.image = True
            images, size = images + 1, size + shown.size
    return placed
