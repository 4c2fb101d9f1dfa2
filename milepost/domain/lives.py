"""The life of an agent: whether a person has stopped it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class AgentState(StrEnum):
    """`REGISTERED`: configured and never used. `IDLE`: used, and nothing runs. Derived, but for `STOPPED`."""

    REGISTERED = "registered"
    IDLE = "idle"
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class AgentStop:
    """An agent that works no more until it is started again. `stopped_at` is microseconds since the epoch, UTC."""

    agent: str
    stopped_at: int
    actor: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AgentLifeChanged:
    """A person stopped an agent, or started it again (`stopped` false); in the instance's stream."""

    TYPE: ClassVar[str] = "agent.life_changed"
    VERSION: ClassVar[int] = 1
    agent: str
    stopped: bool
    actor: str
    reason: str | None = None
