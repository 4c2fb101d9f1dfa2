"""How many connections are served, for TCP apart from the Unix socket: strangers who use up TCP leave the CLI its way.

Connections over the limit get a plain 503 for their request; a few are held for that, further ones are cut at once.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from dataclasses import dataclass, field

MAX_TCP = 2_000
MAX_UNIX = 500
MIN_CONNECTIONS = 16
MAX_REFUSED = 32
"""How many connections over a limit are held until they have their 503."""


@dataclass(slots=True)
class Connections:
    """The open connections of one server, by the address they came to."""

    max_tcp: int = MAX_TCP
    max_unix: int = MAX_UNIX
    _tcp: set[asyncio.BaseTransport] = field(default_factory=set, repr=False)
    _unix: set[asyncio.BaseTransport] = field(default_factory=set, repr=False)

    @classmethod
    def for_this_process(cls) -> Connections:
        """Limits that leave a third of the process's file descriptors to everything else."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return cls()
        return cls(
            max_tcp=min(MAX_TCP, max(MIN_CONNECTIONS, soft // 2 - MAX_REFUSED)),
            max_unix=min(MAX_UNIX, max(MIN_CONNECTIONS, soft // 6 - MAX_REFUSED)),
        )

    def opened(self, transport: asyncio.Transport) -> bool:
        """Count a connection; False if it is one too many. One far over the limit is aborted."""
        peer = transport.get_extra_info("socket")
        local = peer is not None and peer.family == socket.AF_UNIX
        held, limit = (self._unix, self.max_unix) if local else (self._tcp, self.max_tcp)
        held.add(transport)
        if len(held) > limit + MAX_REFUSED:
            transport.abort()
        return len(held) <= limit

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection."""
        self._tcp.discard(transport)
        self._unix.discard(transport)
