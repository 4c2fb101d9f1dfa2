"""Live readers: one form of a frame for WebSocket and SSE, and a bound on how many follow at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from api.problems import problem_of, unexpected
from api.responses import json_text
from api.times import rfc3339
from milepost.domain.errors import MilepostError, TooManyReaders
from milepost.services.live import Cursor, Frame, LiveService

DEFAULT_MAX_READERS = 500
PROBLEM_FRAME = "problem"
_SSE_RETRY = b"retry: 1000\n\n"
"""Milliseconds after which a browser reconnects."""


@dataclass(slots=True)
class LiveReaders:
    """The live readers of this process."""

    live: LiveService
    limit: int = DEFAULT_MAX_READERS
    count: int = 0
    draining: bool = False
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops, for readers that wait for something else than the live service."""

    def enter(self) -> None:
        """Count one more. Raises TooManyReaders."""
        if self.draining or self.count >= self.limit:
            raise TooManyReaders(
                "The API is stopping." if self.draining else f"{self.count} live readers follow already.",
                fix="Try again later; other requests are served.",
            )
        self.count += 1

    def leave(self) -> None:
        self.count -= 1

    def drain(self) -> None:
        """End all readers and accept no new ones; called when the server stops. Never blocks."""
        self.draining = True
        self.stopped.set()
        self.live.close()


class LiveStream:
    """The frames of one reader. Whoever opened it must call `aclose`."""

    def __init__(self, readers: LiveReaders, frames: AsyncGenerator[Frame, None], first: Frame) -> None:
        self._readers = readers
        self._frames = frames
        self._first = first
        self._closed = False

    @classmethod
    async def open(
        cls, readers: LiveReaders, session_id: str, after: Cursor, until_turn: str | None = None
    ) -> LiveStream:
        """A stream whose first frame is there, so that what is wrong with the request is known before anything is sent.

        Raises:
            TooManyReaders, SessionNotFound, TurnNotFound, InvalidInput, StorageUnavailable.
        """
        readers.enter()
        frames = readers.live.follow(session_id, after, until_turn=until_turn)
        try:
            first = await anext(frames)
        except BaseException:
            readers.leave()
            await frames.aclose()
            raise
        return cls(readers, frames, first)

    async def frames(self) -> AsyncIterator[Frame]:
        """All frames. A failure on the way is told by a last frame of type `problem` that does not move the cursor."""
        cursor = self._first.cursor
        yield self._first
        try:
            async for frame in self._frames:
                cursor = frame.cursor
                yield frame
        except MilepostError as error:
            yield Frame(PROBLEM_FRAME, cursor, problem_of(error))
        except Exception as error:
            yield Frame(PROBLEM_FRAME, cursor, unexpected(error, stream="live"))

    async def aclose(self) -> None:
        """End the stream; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._readers.leave()
            await self._frames.aclose()


def frame_text(frame: Frame) -> str:
    """A frame as one line of JSON: `type`, `cursor`, `data`. The same text on both transports."""
    data = frame.data
    if frame.type == "event":
        data = data | {"at": rfc3339(data["at"])}
    return json_text({"type": frame.type, "cursor": str(frame.cursor), "data": data})


def sse_bytes(frame: Frame) -> bytes:
    """A frame as a server-sent event whose id is the cursor; a keep-alive as a comment, which clients do not see."""
    if frame.type == "keepalive":
        return b": keepalive\n\n"
    return f"id: {frame.cursor}\nevent: {frame.type}\ndata: {frame_text(frame)}\n\n".encode()


async def sse_stream(stream: LiveStream) -> AsyncIterator[bytes]:
    """A stream as the body of a server-sent events response."""
    yield _SSE_RETRY
    async for frame in stream.frames():
        yield sse_bytes(frame)
