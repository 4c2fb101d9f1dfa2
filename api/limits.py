"""Bounds on request bodies, checked while they arrive and before anything parses them. Plain ASGI."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import http_problem

DEFAULT_MAX_BODY_BYTES = 8 * 1024 * 1024
BODY_SECONDS = 60.0


class BodyLimit:
    """413 for a body over `max_bytes`, announced or not; 408 for one that is not complete after `seconds`."""

    def __init__(self, app: ASGIApp, *, max_bytes: int = DEFAULT_MAX_BODY_BYTES, seconds: float = BODY_SECONDS) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The server has refused a Content-Length that is no number.
        announced = int(dict(scope["headers"]).get(b"content-length", b"0"))
        if announced > self._max_bytes:
            await http_problem(self._too_large())(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"The request body is over {self._max_bytes} bytes.")

    def _counted(self, receive: Receive) -> Receive:
        size = 0
        complete = False
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def wrapped() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The body was not complete after {self._seconds:.0f} s.") from None
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            if size > self._max_bytes:
                raise self._too_large()
            return message

        return wrapped
