"""Exporting a Session: pieces of a document, made as they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import StrEnum

from milepost.domain.usage import Usage
from milepost.ports.ledger import Ledger
from milepost.ports.system import Clock
from milepost.services.contents import Contents
from milepost.services.exporting.html import HtmlExport
from milepost.services.exporting.lossless import LosslessExport
from milepost.services.exporting.markdown import MarkdownExport
from milepost.services.exporting.reading import Span, SpanReader

PIECE_CHARACTERS = 64 * 1024
"""Small pieces are joined up to this size."""


class ExportFormat(StrEnum):
    """`JSON` is lossless and can be imported; the others are for people."""

    JSON = "json"
    MARKDOWN = "md"
    HTML = "html"


class ExportService:
    """Exports Sessions. What is appended while an export is written is not part of it."""

    def __init__(self, ledger: Ledger, contents: Contents, clock: Clock, release: str) -> None:
        self._ledger = ledger
        self._contents = contents
        self._clock = clock
        self._release = release
        self._reader = SpanReader(ledger)

    async def export(
        self, session_id: str, wanted: ExportFormat, *, superseded: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """The document in pieces, of which few are in memory at a time. Close it when done with it early.

        JSON has all turns; the others have superseded ones only if asked for.

        Raises:
            SessionNotFound: before the first piece.
            StorageUnavailable, BlobNotFound: when the document cannot be gone on with.
        """
        span = await self._reader.open(session_id)
        if wanted is ExportFormat.JSON:
            made = LosslessExport(self._ledger, self._contents, span, self._release, self._clock.now())
            return _joined_bytes(made.pieces())
        texts = self._html(span, superseded) if wanted is ExportFormat.HTML else self._markdown(span, superseded)
        return _encoded(texts)

    async def _markdown(self, span: Span, superseded: bool) -> AsyncGenerator[str, None]:
        writer = MarkdownExport(self._contents)
        yield writer.opening(span.session, self._clock.now())
        async with aclosing(self._reader.blocks(span, superseded=superseded)) as blocks:
            async for block in blocks:
                async for piece in writer.block(block):
                    yield piece

    async def _html(self, span: Span, superseded: bool) -> AsyncGenerator[str, None]:
        writer = HtmlExport(self._contents)
        yield writer.opening(span.session)
        count, usage = 0, Usage()
        async for page in self._reader.turns(span):
            for turn in page:
                usage += turn.usage
                if superseded or not turn.superseded:
                    count += 1
                    yield writer.link(turn)
        yield writer.facts(span.session, self._clock.now(), count, usage)
        async with aclosing(self._reader.blocks(span, superseded=superseded)) as blocks:
            async for block in blocks:
                async for piece in writer.block(block):
                    yield piece
        yield writer.closing()


async def _encoded(texts: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
    held: list[str] = []
    size = 0
    async with aclosing(texts):
        async for text in texts:
            held.append(text)
            size += len(text)
            if size >= PIECE_CHARACTERS:
                yield "".join(held).encode("utf-8", "replace")
                held, size = [], 0
                await asyncio.sleep(0)  # rendering is work; others get their turn
    yield "".join(held).encode("utf-8", "replace")


async def _joined_bytes(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    held: list[bytes] = []
    size = 0
    async with aclosing(pieces):
        async for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size >= PIECE_CHARACTERS:
                yield b"".join(held)
                held, size = [], 0
                await asyncio.sleep(0)
    yield b"".join(held)
