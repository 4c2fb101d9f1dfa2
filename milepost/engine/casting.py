"""Which parts a turn has: its agents, and for each Coordinator the planning and the declared workers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from milepost.domain.agents import AgentConfig
from milepost.domain.errors import AgentUnknown, ConfigInvalid
from milepost.domain.messages import ResponseFormat
from milepost.domain.teams import (
    MAX_TEAM_AGENTS,
    MAX_TEAM_DEPTH,
    AgentRole,
    planning_part,
    worker_part,
)
from milepost.engine.planning import PLAN_SCHEMA


@dataclass(frozen=True, slots=True)
class Role:
    """A part of the turn and the configuration that it is played by. `depends_on` is of parts of this turn."""

    part: str
    config: AgentConfig
    depends_on: tuple[str, ...] = ()


def cast(agents: Mapping[str, AgentConfig], named: Sequence[str]) -> tuple[Role, ...]:
    """All parts of a turn, those that the workflow begins with first.

    Raises:
        AgentUnknown: the configuration no longer has an agent.
        ConfigInvalid: Coordinators are nested too deep, or there are too many parts.
    """
    roles: list[Role] = []
    for agent_id in named:
        config = _known(agents, agent_id)
        depends_on = tuple(each for each in config.depends_on if each in named)
        roles.append(Role(agent_id, config, depends_on))
    for role in list(roles):
        for below in _below(agents, role.part, role.config, 1):
            roles.append(below)
            if len(roles) > MAX_TEAM_AGENTS:
                raise ConfigInvalid(f"The turn would have more than {MAX_TEAM_AGENTS} agents.", field="agents")
    return tuple(roles)


def _below(agents: Mapping[str, AgentConfig], part: str, config: AgentConfig, depth: int) -> Iterator[Role]:
    if config.role is not AgentRole.COORDINATOR:
        return
    if depth > MAX_TEAM_DEPTH:
        raise ConfigInvalid(f"Coordinators are nested more than {MAX_TEAM_DEPTH} deep at '{part}'.", field="agents")
    plan = ResponseFormat(PLAN_SCHEMA, "plan")
    yield Role(planning_part(part), replace(config, sampling=replace(config.sampling, response_format=plan)))
    for worker in config.workers:
        below = _known(agents, worker)
        yield Role(worker_part(part, worker), below)
        yield from _below(agents, worker_part(part, worker), below, depth + 1)


def _known(agents: Mapping[str, AgentConfig], agent_id: str) -> AgentConfig:
    config = agents.get(agent_id)
    if config is None:
        raise AgentUnknown(f"The configuration no longer has the agent '{agent_id}'.", field="agent")
    return config
