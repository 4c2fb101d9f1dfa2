"""A loopback proxy for tests: it can cut what is idle, cut everything, refuse, and count gRPC requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS = 1


class Proxy:
    """Passes bytes on between clients of `port` and `target` (HOST:PORT)."""

    def __init__(self, target: str, idle_seconds: float | None = None) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._idle = idle_seconds
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.down = False
        self.port = 0
        self.requests = 0
        """HTTP/2 requests that clients began."""
        self.cut_idle = 0
        """Connections that were cut since nothing came from the target for too long."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def go_down(self) -> None:
        """Break all connections and take no more until `down` is False again."""
        self.down = True
        self.cut()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            back_reader, back_writer = await asyncio.open_connection(self._host, self._port)
            pair = {writer, back_writer}
            self._writers |= pair
            try:
                count = _Requests(self)
                ways = {
                    asyncio.create_task(self._pass(reader, back_writer, count)),
                    asyncio.create_task(self._pass(back_reader, writer, None)),
                }
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._writers -= pair
                for way in ways:
                    way.cancel()
                for each in pair:
                    each.transport.abort()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: _Requests | None
    ) -> None:
        idle = self._idle if requests is None else None
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(idle):
                    data = await reader.read(65536)
            except TimeoutError:
                # A machine that stood still for that long is no idle connection.
                if time.monotonic() - began > 2 * (idle or 0):
                    continue
                self.cut_idle += 1
                return
            if not data:
                return
            if requests is not None:
                requests.feed(data)
            writer.write(data)
            await writer.drain()


class _Requests:
    """Counts the HEADERS frames that a client sends (RFC 9113, section 4.1): one for each request of gRPC."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._buffer = b""
        self._skip = 0
        self._http2: bool | None = None

    def feed(self, data: bytes) -> None:
        if self._http2 is False:
            return
        self._buffer += data
        if self._http2 is None:
            if len(self._buffer) < len(_PREFACE):
                return
            self._http2 = self._buffer.startswith(_PREFACE)
            self._skip = len(_PREFACE)
        while True:
            step = min(self._skip, len(self._buffer))
            self._buffer, self._skip = self._buffer[step:], self._skip - step
            if self._skip or len(self._buffer) < 9:
                return
            self._skip = 9 + int.from_bytes(self._buffer[:3])
            self._proxy.requests += self._buffer[3] == _HEADERS


@asynccontextmanager
async def proxied(target: str, idle_seconds: float | None = None) -> AsyncIterator[Proxy]:
    """A running proxy."""
    proxy = Proxy(target, idle_seconds)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
