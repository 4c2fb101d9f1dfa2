"""Connections whose peer does not read, or does not say what it wants, are cut off.

A response is never buffered without bound: the application waits while the peer's window is full. Without a time limit
it would wait for ever, and so would a polite close, which first flushes. So the transport is aborted. The same happens
to a connection on which no request is under way and none becomes complete: it would hold a place without end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from api.connections import Connections

WRITE_SECONDS = 30.0
HEAD_SECONDS = 10.0
"""From the opening of a connection, or the first byte of a further request, to the end of the request's head."""

_UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class _Watch:
    """Aborts a transport a while after the first `start`, unless `stop` comes before."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, transport.abort)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def http_protocol(
    connections: Connections, *, write_seconds: float = WRITE_SECONDS, head_seconds: float = HEAD_SECONDS
) -> type[H11Protocol]:
    """HTTP connections that are counted, and aborted when a write does not drain or a request's head does not come."""

    class WatchedHttp(H11Protocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._write = _Watch(write_seconds)
            self._head = _Watch(head_seconds)
            self._refused = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if not connections.opened(transport):
                self._refused = True
                # With none allowed, the server answers every request of this connection with 503.
                self.limit_concurrency = 0
            self._head.start(transport)

        def handle_events(self) -> None:
            super().handle_events()
            under_way = self.cycle is not None and not self.cycle.response_complete
            if under_way or self.transport.get_protocol() is not self:
                self._head.stop()
            elif self.timeout_keep_alive_task is None:
                # Also the rest of a body that was answered already: it stops the keep-alive timer as well.
                self._head.start(self.transport)

        def handle_websocket_upgrade(self, event: Any) -> None:
            if self._refused:
                self.transport.write(_UNAVAILABLE)
                self.transport.close()
                return
            super().handle_websocket_upgrade(event)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write.start(self.transport)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._write.stop()

        def connection_lost(self, exc: Exception | None) -> None:
            connections.closed(self.transport)
            self._write.stop()
            self._head.stop()
            super().connection_lost(exc)

    return WatchedHttp


def websocket_protocol(
    connections: Connections, *, write_seconds: float = WRITE_SECONDS
) -> type[WebSocketsSansIOProtocol]:
    """The same for WebSockets, whose connections begin as HTTP."""

    class WatchedSocket(WebSocketsSansIOProtocol):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._write = _Watch(write_seconds)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write.start(self.transport)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._write.stop()

        def connection_lost(self, exc: Exception | None) -> None:
            connections.closed(self.transport)
            self._write.stop()
            super().connection_lost(exc)

    return WatchedSocket
