"""Connections whose peer does not read are cut off.

A response is never buffered without bound: the application waits while the peer's window is full. Without a time limit
it would wait for ever, and so would a polite close, which first flushes. So the transport is aborted.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

WRITE_SECONDS = 30.0


class _Watch:
    """Runs from the moment a transport is full until it has drained."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def full(self, transport: asyncio.Transport) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, transport.abort)

    def drained(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def http_protocol(seconds: float = WRITE_SECONDS) -> type[H11Protocol]:
    """HTTP connections that are aborted when a write has not drained for `seconds`."""

    class WatchedHttp(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._watch = _Watch(seconds)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch.full(self.transport)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._watch.drained()

        def connection_lost(self, exc: Exception | None) -> None:
            self._watch.drained()
            super().connection_lost(exc)

    return WatchedHttp


def websocket_protocol(seconds: float = WRITE_SECONDS) -> type[WebSocketsSansIOProtocol]:
    """The same for WebSockets."""

    class WatchedSocket(WebSocketsSansIOProtocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._watch = _Watch(seconds)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch.full(self.transport)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._watch.drained()

        def connection_lost(self, exc: Exception | None) -> None:
            self._watch.drained()
            super().connection_lost(exc)

    return WatchedSocket
