"""An agent's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.domain.approvals import DEFAULT_APPROVAL_SECONDS
from milepost.domain.budgets import Budget
from milepost.domain.compaction import ContextPolicy
from milepost.domain.hooks import HookRule
from milepost.domain.longterm import AgentLongTerm
from milepost.domain.memory import MemorySettings
from milepost.domain.messages import Sampling
from milepost.domain.providers import Route
from milepost.domain.teams import AgentFailure, AgentRole
from milepost.domain.tools import BUILTIN_TOOL_POLICIES, Approval

DEFAULT_MAX_ROUNDS = 64
MAX_ROUNDS = 10_000

DEFAULT_SYSTEM_PROMPT = (
    "You are a careful software agent. You work in a sandbox on the files below /workspace. "
    "Use the tools to look before you change, keep changes small, and check your work by running it. "
    "When you are done, say in a few sentences what you did."
)

ALL_TOOLS = tuple(BUILTIN_TOOL_POLICIES)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What an agent is made of. `max_rounds` bounds the model calls of one turn.

    `approvals` says by tool (`*`: any other) whether a person must agree; a tool without an entry has the built-in
    default. A question is open for `approval_seconds`. `fallbacks` are tried in order when a model call fails.
    `memory` is None for an agent that has none.
    `depends_on` are agents of a multi-agent Session whose outputs it builds on; `workers` those a Coordinator hands
    subtasks to.
    """

    agent_id: str
    provider: str
    model: str
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    tools: tuple[str, ...] = ALL_TOOLS
    sampling: Sampling = field(default_factory=Sampling)
    max_rounds: int = DEFAULT_MAX_ROUNDS
    approvals: dict[str, Approval] = field(default_factory=dict)
    approval_seconds: int = DEFAULT_APPROVAL_SECONDS
    hooks: tuple[HookRule, ...] = ()
    fallbacks: tuple[Route, ...] = ()
    budget: Budget = field(default_factory=Budget)
    long_term: AgentLongTerm | None = None
    memory: MemorySettings | None = None
    skills: tuple[str, ...] = ()
    context: ContextPolicy = field(default_factory=ContextPolicy)
    role: AgentRole = AgentRole.AUTONOMOUS
    workers: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    on_failure: AgentFailure = AgentFailure.FAIL
