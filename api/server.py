"""The HTTP server: TCP and a Unix socket at once, started and stopped by whoever owns the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from api.connections import Connections
from api.live import LiveReaders
from api.sockets import bind_tcp, bind_unix, remove_unix, unix_identity
from api.stalls import HEAD_SECONDS, WRITE_SECONDS, http_protocol, websocket_protocol

KEEP_ALIVE_SECONDS = 30
MAX_CLIENT_MESSAGE_BYTES = 64 * 1024
"""Clients of live streams have nothing to say."""
MAX_HEADER_BYTES = 64 * 1024
BACKLOG = 512
START_SECONDS = 30.0
LAST_SECONDS = 2.0


class _Server(uvicorn.Server):
    """Leaves signals to the process's owner, and tells when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ApiServer:
    """Serves one application on `host`:`port` (host None: no TCP) and, if given, on the Unix socket `uds`.

    Attributes:
        port: after `start`, the port that is served (also when 0 was asked for).
    """

    def __init__(
        self,
        app: FastAPI,
        *,
        host: str | None = "127.0.0.1",
        port: int = 8080,
        uds: Path | None = None,
        write_seconds: float = WRITE_SECONDS,
        head_seconds: float = HEAD_SECONDS,
        connections: Connections | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._app = app
        self._uds = uds
        self._write_seconds = write_seconds
        self._head_seconds = head_seconds
        self._connections = connections or Connections.for_this_process()
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._uds_identity: tuple[int, int] | None = None

    @property
    def url(self) -> str | None:
        """Where a client on this host finds the API; None if it is served on the Unix socket only."""
        if self.host is None:
            return None
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Bind and serve; returns when requests are answered.

        Raises:
            AddressUnavailable: an address cannot be bound; nothing is served then.
        """
        listeners = [] if self.host is None else await bind_tcp(self.host, self.port)
        try:
            if listeners:
                self.port = listeners[0].getsockname()[1]
            if self._uds is not None:
                listeners.append(await asyncio.to_thread(bind_unix, self._uds))
                self._uds_identity = unix_identity(self._uds)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        readers: LiveReaders = self._app.state.live_readers
        readers.draining = False
        self._server = _Server(self._config())
        self._task = asyncio.create_task(self._server.serve(listeners), name="milepost-api")
        await self._wait_until_serving(self._server, self._task)

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop accepting, end live streams, give requests in flight `grace_seconds`, then cut what is left.

        Calling it again, or before `start`, does nothing.
        """
        server, task = self._server, self._task
        if server is None or task is None:
            return
        self._server = self._task = None
        readers: LiveReaders = self._app.state.live_readers
        readers.drain()
        # Read at the end of the wait for connections; a rounded value would be zero for "at once".
        server.config.timeout_graceful_shutdown = grace_seconds  # type: ignore[assignment]
        server.should_exit = True
        done, _ = await asyncio.wait({task}, timeout=grace_seconds + LAST_SECONDS)
        for connection in list(server.server_state.connections):
            # One that still flushes to a peer that does not read.
            connection.transport.abort()
        if not done:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task}, timeout=LAST_SECONDS)
        if self._uds is not None and self._uds_identity is not None:
            remove_unix(self._uds, self._uds_identity)

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._app,
            http=http_protocol(self._connections, write_seconds=self._write_seconds, head_seconds=self._head_seconds),
            ws=websocket_protocol(self._connections, write_seconds=self._write_seconds),
            ws_max_size=MAX_CLIENT_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=True,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            backlog=BACKLOG,
        )
        # uvicorn tells each WebSocket at this level; its errors and warnings stay.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        return config

    async def _wait_until_serving(self, server: _Server, task: asyncio.Task[None]) -> None:
        serving = asyncio.create_task(server.serving.wait())
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.wait({serving, task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
        if task.done():
            task.result()
