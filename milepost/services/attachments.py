"""Files of Sessions: taking them in, reading them, removing them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from milepost.domain.attachments import (
    EXTRACTION_SECONDS,
    MAX_ATTACHMENTS,
    MAX_DOCUMENT_BYTES,
    MAX_IMAGE_BYTES,
    MAX_NAME_CHARACTERS,
    MAX_SELECTED,
    Attachment,
    AttachmentRef,
    AttachmentScope,
    AttachmentState,
)
from milepost.domain.content import BlobRef
from milepost.domain.errors import BlobNotFound, InvalidInput, PayloadTooLarge
from milepost.observability.logging import get_logger
from milepost.ports.extraction import Extracted, Extractor
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.system import Clock, IdSource
from milepost.services.contents import TEXT, Contents, text_bytes
from milepost.services.sessions import MAX_PAGE, require_active

BINARY = "application/octet-stream"
POLL_SECONDS = 0.25
_SPARE_SECONDS = 15
_IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*")
_START_BYTES = 16

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AttachmentLimits:
    """Largest files in bytes, by what their first bytes say they are, and how long reading one may take."""

    image_bytes: int = MAX_IMAGE_BYTES
    document_bytes: int = MAX_DOCUMENT_BYTES
    seconds: int = EXTRACTION_SECONDS

    def check(self, name: str, size: int, start: bytes, field: str = "file") -> None:
        """Refuse a file with so many bytes, of which `start` are the first. Raises PayloadTooLarge."""
        image = _is_image(start[:_START_BYTES])
        if size > (limit := self.image_bytes if image else self.document_bytes):
            what = "Images" if image else "Files that are no images"
            raise PayloadTooLarge(
                f"The file '{_shown(name)}' is too large. {what} may have {limit:,} bytes.",
                field=field,
                fix="Attach a smaller file, or put it into the Workspace.",
            )


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file on its way in. `name` is a label and nothing else, whatever is in it."""

    session_id: str
    name: str
    scope: AttachmentScope = AttachmentScope.ONCE


class AttachmentService:
    """Use cases of attachments."""

    def __init__(
        self,
        ledger: Ledger,
        contents: Contents,
        clock: Clock,
        ids: IdSource,
        extractor: Extractor,
        limits: AttachmentLimits | None = None,
    ) -> None:
        self._ledger = ledger
        self._contents = contents
        self._clock = clock
        self._ids = ids
        self._extractor = extractor
        self._limits = limits or AttachmentLimits()
        self._reading: set[asyncio.Task[None]] = set()

    async def attach(self, file: NewFile, pieces: AsyncIterator[bytes], *, wait: bool = True) -> Attachment:
        """Keep a file for the Session's next turn, or for all that follow, and take its text out.

        Without `wait` it is answered as soon as the file is kept; its text is taken out meanwhile.

        Raises:
            SessionNotFound, SessionClosed, InvalidInput (the name, an empty file, too many files),
            PayloadTooLarge (names file and limit; nothing is kept), StorageUnavailable.
        """
        _check_name(file.name)
        await self._ledger.read(lambda tx: _require_room(tx, file))
        blob = await self._contents.store_bytes(self._limited(file.name, pieces), BINARY)
        if blob.size == 0:
            raise InvalidInput(f"The file '{_shown(file.name)}' is empty.", field="file")
        ref = AttachmentRef(self._ids.new("att"), file.name, blob, AttachmentState.PENDING)
        now = self._clock.now()
        attachment = Attachment(file.session_id, file.scope, ref, now, tried_at=now)

        def body(tx: LedgerTx) -> None:
            tx.turns.lock_session(file.session_id)
            _require_room(tx, file)
            tx.attachments.add(attachment)

        await self._ledger.write(body)
        task = asyncio.create_task(self._read_out(attachment))
        self._reading.add(task)
        task.add_done_callback(self._read)
        if not wait:
            return attachment
        # It goes on without whoever asked for it.
        await asyncio.shield(task)
        return await self.get(ref.attachment_id)

    def _read(self, task: asyncio.Task[None]) -> None:
        """Nobody may wait for it; what has failed is begun again when it is asked for."""
        self._reading.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.warning("attachment.unread", error=type(error).__name__, detail=str(error)[:200])

    async def close(self) -> None:
        """End what is being read here; it is begun again later."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def selected(self, session_id: str) -> list[Attachment]:
        """Those the next turn refers to, in their order. Raises SessionNotFound."""
        await self._take_up(session_id)
        return await self._ledger.read(lambda tx: _selected(tx, session_id))

    async def page(self, session_id: str, *, before: str | None = None, limit: int = 50) -> list[Attachment]:
        """All of a Session, newest first; `before` continues after the last one of a page.

        Raises SessionNotFound, AttachmentNotFound (for `before`).
        """
        await self._take_up(session_id)
        bounded = max(1, min(limit, MAX_PAGE))

        def body(tx: LedgerTx) -> list[Attachment]:
            tx.sessions.get(session_id)
            return tx.attachments.page(session_id, before=before, limit=bounded)

        return await self._ledger.read(body)

    async def get(self, attachment_id: str) -> Attachment:
        """Raises AttachmentNotFound."""
        return await self._ledger.read(lambda tx: tx.attachments.get(attachment_id))

    async def text(self, attachment_id: str) -> str:
        """What was taken out of the file. Raises AttachmentNotFound."""

        def body(tx: LedgerTx) -> str:
            tx.attachments.get(attachment_id)
            return tx.attachments.text(attachment_id) or ""

        return await self._ledger.read(body)

    async def remove(self, attachment_id: str) -> Attachment:
        """Take it from the selection. One that a turn has used stays to be looked at; one that none has used is gone.

        Removing it again changes nothing. Raises AttachmentNotFound.
        """
        now = self._clock.now()
        session_id = (await self.get(attachment_id)).session_id

        def body(tx: LedgerTx) -> Attachment:
            tx.turns.lock_session(session_id)
            found = tx.attachments.get(attachment_id)
            if found.removed_at is not None:
                return found
            if found.used_by is None:
                tx.attachments.delete(attachment_id)
            else:
                tx.attachments.remove(attachment_id, now)
            return replace(found, removed_at=now)

        return await self._ledger.write(body)

    async def settled(self, session_id: str) -> None:
        """Wait until the files of the next turn are read, at most as long as reading may take.

        Files that a killed process left are read here.
        """
        until = self._clock.now() + (self._limits.seconds + _SPARE_SECONDS) * 1_000_000
        while self._clock.now() < until:
            await self._take_up(session_id)
            found = await self._ledger.read(lambda tx: tx.attachments.selected(session_id, MAX_SELECTED))
            if all(item.ref.state.settled for item in found):
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _take_up(self, session_id: str) -> None:
        """Read the selected files that nobody has been reading for long."""
        found = await self._ledger.read(lambda tx: tx.attachments.selected(session_id, MAX_SELECTED))
        for attachment in found:
            if not attachment.ref.state.settled and attachment.tried_at < self._left_since():
                await self._read_out(attachment)

    def _left_since(self) -> int:
        return self._clock.now() - (self._limits.seconds + _SPARE_SECONDS) * 1_000_000

    async def _read_out(self, attachment: Attachment) -> None:
        """Take the text out and note it; somebody else may be at it, or the file may be removed meanwhile."""
        ref = attachment.ref
        now, before = self._clock.now(), self._left_since()
        if not await self._ledger.write(lambda tx: tx.attachments.take(ref.attachment_id, now, before)):
            return
        try:
            async with aclosing(self._contents.bytes_of(ref.blob)) as pieces:
                found = await self._extractor.extract(pieces, ref.name)
        except BlobNotFound as error:
            found = Extracted(AttachmentState.FAILED, BINARY, note=error.message)
        settled = replace(
            ref,
            blob=replace(ref.blob, media_type=found.media_type),
            state=found.state,
            text=await self._kept(text_bytes(found.text) if found.text.strip() else None, TEXT),
            image=await self._kept(found.image, found.image_type),
            note=found.note,
        )
        await self._ledger.write(lambda tx: tx.attachments.settle(settled, found.text or None))
        _log.info("attachment.read", attachment_id=ref.attachment_id, state=found.state.value, bytes=ref.blob.size)

    async def _kept(self, data: bytes | None, media_type: str) -> BlobRef | None:
        """As a blob, since every turn of the Session may refer to it."""
        if data is None:
            return None

        async def pieces() -> AsyncGenerator[bytes, None]:
            yield data

        return await self._contents.store_bytes(pieces(), media_type)

    async def _limited(self, name: str, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """The pieces, while they are within the limit of what the first bytes say the file is."""
        size, start = 0, b""
        async for piece in pieces:
            size += len(piece)
            start = start if len(start) >= _START_BYTES else (start + piece)[:_START_BYTES]
            self._limits.check(name, size, start)
            yield piece


def _is_image(start: bytes) -> bool:
    """Whether the first bytes of a file are those of an image; its reader looks closer."""
    webp = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
    bitmap = start[:2] == b"BM" and start[6:10] == bytes(4)
    return webp or bitmap or start.startswith(_IMAGES)


def _selected(tx: LedgerTx, session_id: str) -> list[Attachment]:
    tx.sessions.get(session_id)
    return tx.attachments.selected(session_id, MAX_SELECTED)


def _require_room(tx: LedgerTx, file: NewFile) -> None:
    require_active(tx.sessions.get(file.session_id))
    fix = "Send a turn, or remove some: milepost attachments list SESSION"
    if len(tx.attachments.selected(file.session_id, MAX_SELECTED)) >= MAX_SELECTED:
        raise InvalidInput(
            f"'{_shown(file.name)}' was not attached: the next turn has {MAX_SELECTED} attachments already, "
            "which is the limit.",
            field="file",
            fix=fix,
        )
    if tx.attachments.count(file.session_id, MAX_ATTACHMENTS) >= MAX_ATTACHMENTS:
        raise InvalidInput(
            f"'{_shown(file.name)}' was not attached: the Session has {MAX_ATTACHMENTS} attachments, "
            "which is the limit.",
            field="file",
            fix="Begin a new Session.",
        )


def _check_name(name: str) -> None:
    if not name.strip() or len(name) > MAX_NAME_CHARACTERS:
        raise InvalidInput(f"A file's name has 1 to {MAX_NAME_CHARACTERS} characters.", field="name")


def _shown(name: str) -> str:
    """A name as an error can quote it."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name)
