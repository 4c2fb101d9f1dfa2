"""A byte stream to a process in the sandbox, over the SDK's command calls."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
from typing import TYPE_CHECKING, Any

from milepost.domain.errors import SandboxUnavailable
from milepost.sandboxes.client import LinkDown, SandboxGone
from milepost.sandboxes.e2b.service import Missing, Service

if TYPE_CHECKING:
    from e2b import AsyncSandbox

MAX_WAITING = 64
"""Pieces of output that wait to be received; further ones wait at the service."""
MAX_PIECE = 256 * 1024
"""Bytes of one request; the service takes them in base64."""
MAX_LINE = 128 * 1024
CLOSE_SECONDS = 5.0
SEND_SECONDS = 300.0
"""For all pieces of one call."""


class ProcessLink:
    """Input and output of a bridge. Closing it ends the bridge, and nothing else."""

    def __init__(self, service: Service, sandbox: AsyncSandbox) -> None:
        self._service = service
        self._sandbox = sandbox
        self._handle: Any = None
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self._line = ""
        self._ended: asyncio.Task[None] | None = None
        self._finished = False
        self._sending = asyncio.Lock()
        self.errors = ""

    async def open(self, command: str) -> None:
        """Start the bridge. Raises LinkDown, SandboxGone."""
        async with self._failing():
            self._handle = await self._sandbox.commands.run(
                command,
                background=True,
                stdin=True,
                timeout=0,
                request_timeout=self._service.settings.request_seconds,
                on_stdout=self._output,
                on_stderr=self._error,
                retain_output=False,
            )
        self._ended = asyncio.create_task(self._watch(), name="e2b-bridge")

    async def receive(self) -> bytes:
        """Some bytes; empty at the end."""
        if self._pieces.empty() and self._ended is not None and self._ended.done():
            return b""
        return await self._pieces.get()

    async def send(self, data: bytes) -> None:
        """Pieces go one after the other, and nothing between those of one call: their order is that of the requests."""
        async with self._sending, self._failing(SEND_SECONDS):
            for start in range(0, len(data), MAX_PIECE):
                await self._sandbox.commands.send_stdin(self._handle.pid, data[start : start + MAX_PIECE])

    async def finish(self) -> None:
        """End the bridge's input; doing it again is fine."""
        if not self._finished:
            self._finished = True
            async with self._failing():
                await self._sandbox.commands.close_stdin(self._handle.pid)

    async def close(self) -> None:
        """End the bridge; where the sandbox does not answer, it ends by itself when nobody sends any more."""
        with contextlib.suppress(TimeoutError, LinkDown, SandboxGone):
            async with asyncio.timeout(CLOSE_SECONDS), self._failing():
                await self._sandbox.commands.kill(self._handle.pid)
        if self._ended is not None:
            self._ended.cancel()
            await asyncio.gather(self._ended, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._handle.disconnect()

    async def _watch(self) -> None:
        try:
            # Whatever ends the stream, the supervisor keeps what it was asked for.
            await asyncio.gather(self._handle.wait(), return_exceptions=True)
        finally:
            with contextlib.suppress(asyncio.QueueFull):
                self._pieces.put_nowait(b"")

    async def _output(self, text: str) -> None:
        """Called by the SDK, which waits for it: a full queue holds the stream up."""
        *lines, self._line = (self._line + text).split("\n")
        if len(self._line) > MAX_LINE:
            raise LinkDown("the bridge wrote a line that is too long")
        for line in lines:
            try:
                piece = binascii.a2b_base64(line, strict_mode=True)
            except binascii.Error:
                raise LinkDown("the bridge wrote what is no base64") from None
            if piece:
                await self._pieces.put(piece)

    async def _error(self, text: str) -> None:
        self.errors = (self.errors + text)[:4096]

    @contextlib.asynccontextmanager
    async def _failing(self, seconds: float | None = None) -> Any:
        try:
            async with self._service.translated(seconds):
                yield
        except Missing as error:
            raise SandboxGone(f"The E2B sandbox is gone or paused: {error}") from None
        except SandboxUnavailable as error:
            raise LinkDown(error.message) from None
