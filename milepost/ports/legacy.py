"""Checkpoints of before 1.0, to be read and never written (docs/legacy.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LegacyFile:
    """A file that was read whole. `at` is when it was last written, in microseconds since the epoch."""

    data: bytes
    at: int


class LegacyCheckpoints(Protocol):
    """The folders `checkpoints/NAME/`. Its calls block."""

    def checkpoints(self, name: str) -> list[int]:
        """Versions, newest first, at most 1,000. Raises LegacyUnusable: this can be no name."""

    def checkpoint(self, name: str, version: int) -> LegacyFile | None:
        """One of them; None if it is not a plain file of this user within the bound."""
