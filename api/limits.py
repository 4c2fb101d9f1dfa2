"""Bounds on request bodies, checked while they arrive and before anything parses them. Plain ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import http_problem

DEFAULT_MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_OPEN_BODY_BYTES = 8 * 1024
"""Of routes that need no credentials: what strangers send is held in memory too. Room for a token of any escapes."""
BODY_SECONDS = 60.0


def _closed(method: str, path: str) -> bool:
    return False


class BodyLimit:
    """413 for a body over `max_bytes`, announced or not; 408 for one that is not complete after `seconds`.

    Routes that `is_open` names take `MAX_OPEN_BODY_BYTES`; those that `has_own` names read their bodies piece by piece
    under limits of their own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int = DEFAULT_MAX_BODY_BYTES,
        seconds: float = BODY_SECONDS,
        is_open: Callable[[str, str], bool] = _closed,
        has_own: Callable[[str, str], bool] = _closed,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._is_open = is_open
        self._has_own = has_own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._has_own(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        # The server has refused a Content-Length that is no number.
        announced = int(dict(scope["headers"]).get(b"content-length", b"0"))
        open_route = self._is_open(scope["method"], scope["path"])
        limit = min(MAX_OPEN_BODY_BYTES, self._max_bytes) if open_route else self._max_bytes
        if announced > limit:
            await http_problem(_too_large(limit))(scope, receive, send)
            return
        await self._app(scope, self._counted(receive, limit), send)

    def _counted(self, receive: Receive, limit: int) -> Receive:
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
            if size > limit:
                raise _too_large(limit)
            return message

        return wrapped


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"The request body is over {limit} bytes.")
