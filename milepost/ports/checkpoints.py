"""Where checkpoints are kept. Each of one folder, `key`, has a position (a seq); a greater one is newer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One checkpoint. `size` is bytes, `at` when it was put there, in seconds since the epoch."""

    key: str
    seq: int
    size: int
    at: float


class CheckpointStore(Protocol):
    """Keeps bytes. Its calls block: they belong into a thread."""

    def files(self, key: str) -> list[CheckpointFile]:
        """Newest first, at most 1,000. Raises StorageUnavailable."""

    def read(self, file: CheckpointFile) -> bytes:
        """Raises CheckpointUnusable: gone, over 64 MiB, or not this user's alone."""

    def write(self, key: str, seq: int, data: bytes) -> None:
        """Put a checkpoint in place whole or not at all, then drop all but the newest three.

        Raises StorageUnavailable.
        """

    def discard(self, file: CheckpointFile) -> None:
        """Remove a checkpoint, which may be gone already. Raises StorageUnavailable."""


class NoCheckpoints:
    """A store that keeps nothing."""

    def files(self, key: str) -> list[CheckpointFile]:
        return []

    def read(self, file: CheckpointFile) -> bytes:
        raise NotImplementedError

    def write(self, key: str, seq: int, data: bytes) -> None:
        return

    def discard(self, file: CheckpointFile) -> None:
        return
