"""Agents of the configuration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from api.schemas.base import Body, Shape
from milepost.ports.agents import AgentSettings

AgentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class AgentSettingsShape(Shape):
    """An agent: `written` stands in the file, `effective` has all defaults filled in."""

    agent_id: str
    default: bool
    written: dict[str, Any]
    effective: dict[str, Any]

    @classmethod
    def of(cls, found: AgentSettings) -> AgentSettingsShape:
        return cls(
            agent_id=found.agent_id,
            default=found.default,
            written=dict(found.written),
            effective=dict(found.effective),
        )


class AgentAdd(Body):
    """A new agent with the keys of docs/configuration.md, for example `provider`, `model`, `tools`."""

    agent_id: AgentName
    settings: dict[str, Any] = Field(default_factory=dict)


class AgentChange(Body):
    """Keys to set; objects are merged, null removes a key."""

    settings: Annotated[dict[str, Any], Field(min_length=1)]
