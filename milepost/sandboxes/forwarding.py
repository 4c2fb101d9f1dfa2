"""Ports of a sandbox on this host's loopback, over streams that the back end opens to them.

A back end's own publishing is not used: Podman's needs a network and, as root, a way from the container back to this
host, which is closed to sandboxes; E2B's is public. Nothing but loopback is ever bound.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol

from milepost.observability.logging import get_logger
from milepost.sandboxes.client import Link, LinkDown

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 32
"""At once, for each sandbox; further ones wait."""
CHUNK = 256 * 1024

TUNNEL = r"""
import os, socket, sys, threading
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10)
s.settimeout(None)
def up():
    while True:
        d = os.read(0, 65536)
        if not d: break
        s.sendall(d)
    s.settimeout(30)
    try: s.shutdown(socket.SHUT_WR)
    except OSError: pass
threading.Thread(target=up, daemon=True).start()
try:
    while True:
        d = s.recv(65536)
        if not d: break
        while d: d = d[os.write(1, d):]
except OSError:
    pass
os._exit(0)
"""
COMMAND = ("python3", "-SsEI", "-c", TUNNEL)


class Stream(Link, Protocol):
    """A byte stream whose two directions end apart."""

    async def finish(self) -> None:
        """Send no more; what comes is still received. Idempotent."""


Reach = Callable[[int], Awaitable[Stream]]
"""(port of the sandbox) -> a stream to it. Raises LinkDown."""

_log = get_logger(__name__)


class Forwarder:
    """Listens while it is open. A port has its own number here if that is free, else another one."""

    def __init__(self, session_id: str, reach: Reach) -> None:
        self._session_id = session_id
        self._reach = reach
        self._servers: list[asyncio.Server] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self.places: dict[int, str] = {}

    async def open(self, ports: Iterable[int]) -> None:
        """Begin to listen for each port that is not listened for yet."""
        for port in ports:
            if port in self.places:
                continue
            serve = partial(self._serve, port)
            try:
                server = await asyncio.start_server(serve, LOOPBACK, port if port >= 1024 else 0)
            except OSError:
                server = await asyncio.start_server(serve, LOOPBACK, 0)
            self._servers.append(server)
            self.places[port] = f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
            _log.info("sandbox.port", session_id=self._session_id, port=port, at=self.places[port])

    async def close(self) -> None:
        """Stop listening; connections that are open end by themselves."""
        servers, self._servers, self.places = self._servers, [], {}
        for server in servers:
            server.close()

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._slots:
            try:
                link = await self._reach(port)
            except LinkDown as error:
                _log.warning("sandbox.port_unreachable", session_id=self._session_id, port=port, detail=str(error))
                writer.close()
                return
            up = asyncio.ensure_future(_up(reader, link))
            try:
                while data := await link.receive():
                    writer.write(data)
                    await writer.drain()
            except (OSError, LinkDown):
                pass
            finally:
                up.cancel()
                await asyncio.gather(up, return_exceptions=True)
                with contextlib.suppress(OSError, LinkDown):
                    await link.finish()
                await link.close()
                writer.close()


async def _up(reader: asyncio.StreamReader, link: Stream) -> None:
    with contextlib.suppress(OSError, LinkDown):
        while data := await reader.read(CHUNK):
            await link.send(data)
        await link.finish()
