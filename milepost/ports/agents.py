"""The agents of the configuration, read and edited where they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """An agent as it is configured: `written` stands in the file, `effective` has all defaults filled in."""

    agent_id: str
    default: bool
    written: Mapping[str, Any]
    effective: Mapping[str, Any]


class AgentEditor(Protocol):
    """Reads and writes agents in the configuration file, of which everything else stays as it is.

    A change is checked with the whole configuration before it is written; it counts from the next turn on, in every
    process that reads this file. Methods do file I/O and block.
    """

    def list(self) -> list[AgentSettings]:
        """All agents, in the order of the file. Raises ConfigInvalid."""

    def get(self, agent_id: str) -> AgentSettings:
        """Raises AgentUnknown (naming the nearest one), ConfigInvalid."""

    def add(self, agent_id: str, values: Mapping[str, Any]) -> AgentSettings:
        """Add an agent. Raises AgentExists, ConfigInvalid (with the key and the nearest known one), ConfigReadOnly."""

    def change(self, agent_id: str, changes: Mapping[str, Any]) -> AgentSettings:
        """Set values by key; mappings are merged, None removes a key. Raises AgentUnknown, as `add`."""

    def remove(self, agent_id: str) -> None:
        """Remove an agent. Raises AgentUnknown, ConfigInvalid: it is needed, ConfigReadOnly."""
