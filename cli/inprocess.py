"""The API in this process as an HTTP transport that holds no more of an answer than is being read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.types import ASGIApp, Message

WAITING_PIECES = 8


class StreamingTransport(httpx.AsyncBaseTransport):
    """Calls an ASGI application. httpx has one of its own, which reads the whole answer before it gives any of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Run the application until its answer begins; its body comes as it is read."""
        exchange = _Exchange(request)
        exchange.task = asyncio.create_task(exchange.run(self._app))
        try:
            start = await exchange.messages.get()
        except BaseException:
            exchange.task.cancel()
            raise
        if start is None:
            await exchange.aclose()
            raise httpx.RemoteProtocolError("The application gave no answer.")
        return httpx.Response(start["status"], headers=start.get("headers", []), stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request and its answer."""

    def __init__(self, request: httpx.Request) -> None:
        self._request = request
        self._body: AsyncIterator[bytes] | None = None
        self._sent = False
        self._gone = asyncio.Event()
        self.messages: asyncio.Queue[Message | None] = asyncio.Queue(WAITING_PIECES)
        self.task: asyncio.Task[None] | None = None

    async def run(self, app: ASGIApp) -> None:
        """Call the application; None in `messages` is the end without one."""
        url = self._request.url
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self._request.method,
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.split(b"?")[0],
            "query_string": url.query,
            "server": (url.host, url.port),
            "client": ("127.0.0.1", 1),
            "root_path": "",
        }
        with contextlib.suppress(Exception):  # the application has answered and logged what went wrong
            await app(scope, self._receive, self.messages.put)
        await self.messages.put(None)

    async def _receive(self) -> Message:
        if self._body is None:
            stream = self._request.stream
            assert isinstance(stream, httpx.AsyncByteStream)  # noqa: S101
            self._body = aiter(stream)
        try:
            return {"type": "http.request", "body": await anext(self._body), "more_body": True}
        except StopAsyncIteration:
            pass
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self.messages.get()
            if message is None:
                raise httpx.RemoteProtocolError("The application broke off its answer.")
            if message["type"] != "http.response.body":
                continue
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return

    async def aclose(self) -> None:
        self._gone.set()
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task
