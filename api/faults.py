"""The last net: an unexpected exception becomes a problem without internals, and one log entry. Plain ASGI."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem_response, stopping, unexpected


class Unexpected:
    """Answers 500 for whatever a route did not handle; a response that has begun is cut off instead."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            # The server stops and the time for requests in flight is over.
            if begun:
                raise
            await problem_response(stopping())(scope, receive, send)
        except Exception as error:
            body = unexpected(error, method=scope["method"], path=scope["path"][:200])
            if begun:
                raise
            await problem_response(body)(scope, receive, send)
