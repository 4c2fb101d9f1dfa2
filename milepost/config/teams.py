"""Checks of agents that refer to one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from milepost.config.document import Fault
from milepost.config.models import AgentSection
from milepost.config.problems import nearest
from milepost.domain.teams import MAX_TEAM_DEPTH


def check(agents: Mapping[str, AgentSection]) -> Iterator[Fault]:
    """Unknown names, circles, Coordinators below Coordinators without end, and keys that mean nothing."""
    for name, agent in agents.items():
        for key, given in (("workers", agent.workers), ("depends_on", agent.depends_on)):
            for index, other in enumerate(given):
                if other not in agents:
                    message = f"names an agent '{other}' that is not configured."
                    yield ("agents", name, key, index), message, nearest(other, sorted(agents))
        if agent.workers and agent.role != "coordinator":
            yield ("agents", name, "workers"), "is for agents with 'role: coordinator'.", "Set the role, or remove it."
    dependencies = {name: agent.depends_on for name, agent in agents.items()}
    for name in agents:
        if _depth(name, dependencies, len(agents)) > len(agents):
            yield ("agents", name, "depends_on"), "leads back to the agent itself.", "Break the circle."
    below = {name: agent.workers if agent.role == "coordinator" else () for name, agent in agents.items()}
    for name in agents:
        # A coordinator counts one level, its workers the next.
        if below[name] and _depth(name, below, MAX_TEAM_DEPTH + 1) > MAX_TEAM_DEPTH + 1:
            message = f"leads to coordinators more than {MAX_TEAM_DEPTH} deep, or back to itself."
            yield ("agents", name, "workers"), message, "Name workers that do not coordinate."


def _depth(name: str, edges: Mapping[str, tuple[str, ...]], limit: int) -> int:
    """Names on the longest way down from one; more than `limit` if there are more, or a circle."""
    depth, level = 0, {name}
    while level and depth <= limit:
        depth += 1
        level = {other for each in level for other in edges.get(each, ())}
    return depth
