"""Time, identity and release of this process."""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import socket
import time

from uuid_utils import compat

DISTRIBUTION = "milepost"


class SystemClock:
    """`Clock` of the operating system."""

    def now(self) -> int:
        """Microseconds since the epoch, UTC."""
        return time.time_ns() // 1000


class UuidIds:
    """`IdSource` of UUIDv7."""

    def new(self, prefix: str) -> str:
        """`{prefix}_{32 hexadecimal digits}`."""
        return f"{prefix}_{compat.uuid7().hex}"


def release() -> str:
    """Version of the installed Milepost."""
    return importlib.metadata.version(DISTRIBUTION)


def host_name() -> str:
    """The name that this machine's sandboxes and their queue carry."""
    return socket.gethostname() or "localhost"


def worker_name() -> str:
    """A name for this process that no earlier process had: host, pid and a random part."""
    return f"{socket.gethostname()[:40]}/{os.getpid()}/{secrets.token_hex(4)}"
