"""Workspaces and Sessions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SessionStatus(StrEnum):
    ACTIVE = "active"
    CLOSED = "closed"


class SessionMode(StrEnum):
    """How a turn uses its agents: one that works itself, several in dependency order, or one that hands work on."""

    SINGLE = "single"
    MULTI = "multi"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder: the repository boundary of the Sessions that belong to it. `path` is absolute and resolved."""

    workspace_id: str
    path: str
    created_at: int


@dataclass(frozen=True, slots=True)
class Session:
    """`created_at` and `closed_at` are microseconds since the epoch, UTC. `image` is None for the default image.

    `skills` are those that its agents have in it; None: each has its own.
    """

    session_id: str
    workspace: Workspace
    title: str
    mode: SessionMode
    status: SessionStatus
    agents: tuple[str, ...]
    image: str | None
    created_at: int
    closed_at: int | None
    skills: tuple[str, ...] | None = None
