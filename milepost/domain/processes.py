"""Terminals and background commands of a Session's sandbox, and what its stream records of them and of shells."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

WORKSPACE_DIRECTORY = "."


class ProcessKind(StrEnum):
    TERMINAL = "terminal"
    BACKGROUND = "background"


class ProcessEnding(StrEnum):
    """Why a process runs no more."""

    EXIT = "exit"
    """By itself."""
    ENDED = "ended"
    """Somebody ended it."""
    LIFETIME = "lifetime"
    LOST = "lost"
    """With its container, which was removed or started anew."""
    REFUSED = "refused"
    """It never began."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """What the ledger knows of a process. `host` is the machine of its container, `by` who started it.

    `command` None is a shell. `lifetime` is seconds, `started_at` and `ended_at` are microseconds of the epoch. `boot`
    names the supervisor that has it, once that is known.
    """

    process_id: str
    session_id: str
    kind: ProcessKind
    command: str | None
    cwd: str
    host: str
    generation: int
    by: str
    lifetime: float
    started_at: int
    turn_id: str | None = None
    boot: str = ""
    ended_by: ProcessEnding | None = None
    exit_code: int | None = None
    ended_at: int | None = None
    reason: str | None = None

    @property
    def running(self) -> bool:
        return self.ended_by is None

    @property
    def agent(self) -> str | None:
        """The agent that started it; None if a person did."""
        return self.by.removeprefix("agent:") if self.by.startswith("agent:") else None


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A terminal or background command begins. What is typed into it and what it says are not recorded."""

    TYPE: ClassVar[str] = "process.started"
    VERSION: ClassVar[int] = 1
    process_id: str
    kind: ProcessKind
    command: str | None
    cwd: str
    by: str
    host: str
    generation: int
    lifetime: float


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """It runs no more. `by` is who ended it, `reason` why it was lost or never began."""

    TYPE: ClassVar[str] = "process.ended"
    VERSION: ClassVar[int] = 1
    process_id: str
    ended_by: ProcessEnding
    exit_code: int | None = None
    by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ShellMoved:
    """The directory that the agent's next command begins in, relative to the Workspace."""

    TYPE: ClassVar[str] = "shell.moved"
    VERSION: ClassVar[int] = 1
    turn_id: str
    agent: str
    effect_id: str
    cwd: str


ProcessEvent = ProcessStarted | ProcessEnded | ShellMoved
PROCESS_EVENTS: tuple[type[ProcessEvent], ...] = (ProcessStarted, ProcessEnded, ShellMoved)
