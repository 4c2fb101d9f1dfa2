"""What the ledger's database keeps of memory: work that is to be done and, where processes share it, tiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from milepost.domain.memory import BlockVersion, DailyEntry, Scope


class MemoryTaskKind(StrEnum):
    """`WRITE`: a turn that has ended goes into memory. `REBUILD`: a Session's memory is made anew from its events."""

    WRITE = "write"
    REBUILD = "rebuild"


@dataclass(frozen=True, slots=True)
class MemoryTask:
    """Work on memory, written in the transaction that caused it. `subject` is the id of a turn, or of a Session."""

    kind: MemoryTaskKind
    subject: str
    session_id: str
    created_at: int
    attempts: int
    last_error: str | None


class MemoryTasks(Protocol):
    """At-least-once work of leased loops; what is done is deleted."""

    def add(self, kind: MemoryTaskKind, subject: str, session_id: str, at: int) -> None:
        """Idempotent per (kind, subject)."""

    def lease(self, owner: str, at: int, lease_us: int, limit: int) -> list[MemoryTask]:
        """Take due tasks that nobody holds, oldest first."""

    def renew(self, task: MemoryTask, owner: str, until: int) -> bool:
        """Hold a task for longer; False if it is somebody else's, or done."""

    def done(self, task: MemoryTask) -> None: ...

    def retry(self, task: MemoryTask, due_at: int, error: str) -> None: ...

    def of_session(self, session_id: str) -> list[MemoryTask]:
        """The tasks that are left, oldest first, at most 1,000."""

    def count(self) -> int: ...

    def forget_leases(self) -> None:
        """Only for a process that alone may use the ledger: the others that took tasks are dead."""


class MemoryRows(Protocol):
    """Core blocks and daily logs as rows; see `ports.memory`."""

    def versions(self, scope: Scope) -> dict[str, tuple[BlockVersion, ...]]: ...

    def write_version(self, scope: Scope, label: str, version: BlockVersion) -> BlockVersion:
        """Raises BlockConflict."""

    def drop_blocks(self, scope: Scope) -> None: ...

    def append_entries(self, scope: Scope, entries: Sequence[DailyEntry]) -> None: ...

    def entries(
        self, scope: Scope, start: int, end: int, limit: int, after: tuple[int, str] | None
    ) -> list[DailyEntry]: ...

    def days(self, scope: Scope) -> list[str]: ...

    def drop_entries(self, scope: Scope) -> None: ...
