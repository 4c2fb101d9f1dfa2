"""What one turn changes of its agent's configuration. Pure."""

from __future__ import annotations

from dataclasses import replace

from milepost.domain.agents import MAX_ROUNDS, AgentConfig
from milepost.domain.errors import InvalidInput
from milepost.domain.messages import Sampling
from milepost.domain.skills import skill_tools
from milepost.domain.suggestions import closest
from milepost.domain.turns import Overrides


def overridden(agent: AgentConfig, overrides: Overrides | None) -> AgentConfig:
    """The agent as a turn has it. A stateless one has no memory.

    Raises InvalidInput: a tool that the agent does not have, or rounds out of range.
    """
    if overrides is None:
        return agent
    if overrides.max_rounds is not None and not 1 <= overrides.max_rounds <= MAX_ROUNDS:
        raise InvalidInput(f"max_rounds must be from 1 to {MAX_ROUNDS:,}.", field="max_rounds")
    if overrides.tools is not None:
        _check_tools(agent, overrides.tools)
    return replace(
        agent,
        sampling=agent.sampling if overrides.sampling is None else _merged(agent.sampling, overrides.sampling),
        max_rounds=overrides.max_rounds or agent.max_rounds,
        # In the agent's order: the same tools make the same request.
        tools=agent.tools if overrides.tools is None else tuple(t for t in agent.tools if t in overrides.tools),
        memory=None if overrides.stateless else agent.memory,
    )


def with_skills(agent: AgentConfig, chosen: tuple[str, ...] | None) -> AgentConfig:
    """The agent with the tools of the skills that were chosen for it; None: of its own."""
    return replace(agent, tools=(*agent.tools, *skill_tools(agent.skills if chosen is None else chosen)))


def _check_tools(agent: AgentConfig, tools: tuple[str, ...]) -> None:
    for tool in tools:
        if tool not in agent.tools:
            close = closest(tool, agent.tools)
            fix = f"Did you mean '{close}'?" if close else f"It has: {', '.join(agent.tools) or 'none'}."
            raise InvalidInput(f"The agent '{agent.agent_id}' has no tool '{tool[:100]}'.", field="tools", fix=fix)


def _merged(own: Sampling, chosen: Sampling) -> Sampling:
    return Sampling(
        temperature=own.temperature if chosen.temperature is None else chosen.temperature,
        top_p=own.top_p if chosen.top_p is None else chosen.top_p,
        max_tokens=own.max_tokens if chosen.max_tokens is None else chosen.max_tokens,
        reasoning_effort=own.reasoning_effort if chosen.reasoning_effort is None else chosen.reasoning_effort,
        stop=chosen.stop or own.stop,
        response_format=own.response_format if chosen.response_format is None else chosen.response_format,
    )
