"""The real clock and id source."""

from __future__ import annotations

import time

import uuid_utils


class SystemClock:
    """Wall-clock time."""

    def now(self) -> int:
        """Microseconds since the epoch, UTC."""
        return time.time_ns() // 1_000


class UuidIds:
    """Ids from UUIDv7 (RFC 9562): unique without coordination, sorted by creation time."""

    def new(self, prefix: str) -> str:
        """`{prefix}_{32 hexadecimal digits}`."""
        return f"{prefix}_{uuid_utils.uuid7().hex}"
