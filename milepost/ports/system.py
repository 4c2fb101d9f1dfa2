"""Time and identity, injected so that decisions can be tested."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since the epoch, UTC."""


class IdSource(Protocol):
    def new(self, prefix: str) -> str:
        """A fresh id `{prefix}_{32 hexadecimal digits}` that sorts by creation time (UUIDv7)."""
