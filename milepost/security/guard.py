"""The gate in front of the application: plain ASGI, so that streams pass through it unbuffered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from milepost.security.access import (
    BEARER_SUBPROTOCOL,
    SUBPROTOCOL,
    Access,
    Call,
    Refusal,
    check_caller,
    check_source,
)
from milepost.security.hosts import HostPolicy

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]
Render = Callable[[Refusal], tuple[list[Header], bytes]]
"""Headers and body of a refusal."""

UNAUTHORIZED_CLOSE = 4401
IDENTITY_KEY = "milepost.identity"
SECURITY_HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Added to every response that does not set them itself."""


class Guard:
    """Host, Origin, credentials and response headers for HTTP and WebSockets.

    A WebSocket from a foreign host or origin is refused in the handshake (403); one without valid credentials is
    accepted and closed with 4401, the only form in which a browser's script can tell it from a lost connection.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        access: Access,
        policy: HostPolicy,
        cookie_name: str,
        is_open: Callable[[str, str], bool],
        render: Render,
    ) -> None:
        self._app = app
        self._access = access
        self._policy = policy
        self._cookie_name = cookie_name
        self._is_open = is_open
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        call = call_of(scope)
        if scope["type"] == "http":
            send = _with_security_headers(send)
        refusal = check_source(call, self._policy)
        if refusal is None and not (scope["type"] == "http" and self._is_open(call.method, call.path)):
            outcome = check_caller(call, self._access, self._cookie_name)
            if isinstance(outcome, Refusal):
                refusal = outcome
            else:
                scope[IDENTITY_KEY] = outcome
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket" and refusal.status == 401:
            await _close_unauthorized(scope, receive, send)
        else:
            await self._refuse(scope, send, refusal)

    async def _refuse(self, scope: Scope, send: Send, refusal: Refusal) -> None:
        headers, body = self._render(refusal)
        prefix = "websocket." if scope["type"] == "websocket" else ""
        if prefix and "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": f"{prefix}http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": f"{prefix}http.response.body", "body": body, "more_body": False})


def call_of(scope: Scope) -> Call:
    """The decision's view of an ASGI scope."""
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    client, server = scope.get("client"), scope.get("server")
    return Call(
        method=scope.get("method", "GET"),
        path=scope["path"],
        scheme="https" if scope["scheme"] in ("https", "wss") else "http",
        headers=headers,
        server=(server[0], server[1]) if server else None,
        client=client[0] if client else "local",
        websocket=scope["type"] == "websocket",
        subprotocols=scope.get("subprotocols", ()),
    )


def accepted_subprotocol(offered: list[str]) -> str | None:
    """What to answer to the client's offer: ours, else the bearer one alone (a browser fails without an answer)."""
    if SUBPROTOCOL in offered:
        return SUBPROTOCOL
    return next((name for name in offered if name.startswith(BEARER_SUBPROTOCOL)), None)


async def _close_unauthorized(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept", "subprotocol": accepted_subprotocol(list(scope.get("subprotocols", ())))})
    await send({"type": "websocket.close", "code": UNAUTHORIZED_CLOSE, "reason": "unauthorized"})


def _with_security_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers.extend(header for header in SECURITY_HEADERS if header[0] not in present)
            message = {**message, "headers": headers}
        await send(message)

    return wrapped
