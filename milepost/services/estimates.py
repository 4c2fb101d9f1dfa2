"""What a turn may use, before it is begun: its first calls, what such turns used so far, and the limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from milepost.domain.agents import AgentConfig
from milepost.domain.budgets import Limits
from milepost.domain.content import Content
from milepost.domain.errors import AgentUnknown
from milepost.domain.events import ModelCalled
from milepost.domain.messages import UserMessage
from milepost.domain.prices import priced
from milepost.domain.teams import AgentRole, is_planning, planning_part, worker_part
from milepost.domain.tools import BUILTIN_TOOL_POLICIES, ToolDefinition
from milepost.domain.turns import TurnState
from milepost.domain.usage import Cost, Usage
from milepost.engine.casting import Role, cast
from milepost.engine.tokens import request_items, text_tokens, total
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.models import TokenCounters
from milepost.ports.prices import Prices
from milepost.services.sessions import require_active

LOOK_BACK = 20
"""Turns of the Session that tell what such turns use."""

Definitions = Callable[[Sequence[str]], tuple[ToolDefinition, ...]]


@dataclass(frozen=True, slots=True)
class CallEstimate:
    """A model call that the turn makes in any case. Output is what it may write at most; the cost goes with that."""

    agent: str
    provider: str
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class TurnEstimate:
    """`first` are the calls that are sure; `earlier` is the mean of `turns` earlier turns, None without any.

    `limits` are those of the turn as the agents' configuration has them, the tightest of each.
    """

    first: tuple[CallEstimate, ...]
    earlier: Usage | None
    turns: int
    limits: Limits

    @property
    def least(self) -> Usage:
        return sum((call.usage for call in self.first), Usage())


@dataclass(frozen=True, slots=True)
class _Past:
    sent: Mapping[str, int]
    """By part: the input tokens of its last call, which its next one repeats."""
    used: tuple[Usage, ...]


class EstimateService:
    """Estimates without any call of a model."""

    def __init__(
        self,
        ledger: Ledger,
        agents: Mapping[str, AgentConfig],
        prices: Prices,
        counters: TokenCounters,
        tools: Definitions,
    ) -> None:
        self._ledger = ledger
        self._agents = agents
        self._prices = prices
        self._counters = counters
        self._tools = tools

    async def estimate(self, session_id: str, text: str, agent: str | None = None) -> TurnEstimate:
        """What a turn with this request may use. Raises SessionNotFound, SessionClosed, AgentUnknown."""
        await self._prices.load()

        def body(tx: LedgerTx) -> tuple[tuple[str, ...], _Past]:
            session = tx.sessions.get(session_id)
            require_active(session)
            return (agent,) if agent else session.agents, _past(tx, session_id)

        named, past = await self._ledger.read(body)
        for name in named:
            if name not in self._agents:
                raise AgentUnknown(f"There is no agent '{name}'.", field="agent")
        roles = {role.part: role for role in cast(self._agents, named)}
        first = [await self._call(role, text, past) for role in _sure(roles, named)]
        mean = None if not past.used else _mean(past.used)
        limits = Limits()
        for role in roles.values():
            limits = limits.tightened(role.config.budget.turn)
        return TurnEstimate(tuple(first), mean, len(past.used), limits)

    async def _call(self, role: Role, text: str, past: _Past) -> CallEstimate:
        agent = role.config
        factor, _ = await self._ledger.read(lambda tx: tx.budgets.factor(agent.provider, agent.model))
        count = await self._counters.of(agent.provider, agent.model) or text_tokens
        if role.part in past.sent:
            tokens = past.sent[role.part] + math.ceil(count(text) * factor)
        else:
            # Tools of the user's own are small beside a conversation; a Coordinator offers its model none.
            names = [name for name in agent.tools if name in BUILTIN_TOOL_POLICIES]
            offered = self._tools([] if agent.role is AgentRole.COORDINATOR else names)
            items = request_items(agent.system_prompt, (UserMessage(Content(text)),), offered, count)
            tokens = total(items, factor)
        usage = Usage(tokens, 0, agent.sampling.max_tokens or agent.budget.output_tokens)
        return CallEstimate(
            role.part, agent.provider, agent.model, priced(usage, self._prices.of(agent.provider, agent.model))
        )


def _sure(roles: Mapping[str, Role], named: Sequence[str]) -> Iterator[Role]:
    """The calls that are made in any case: one of each agent; of a Coordinator its plan, one subtask, the answer."""
    for part in named:
        role = roles[part]
        if role.config.role is not AgentRole.COORDINATOR:
            yield role
            continue
        yield roles[planning_part(part)]
        workers = [roles[worker_part(part, worker)] for worker in role.config.workers]
        yield next((each for each in workers if each.config.role is AgentRole.AUTONOMOUS), role)
        yield role


def _past(tx: LedgerTx, session_id: str) -> _Past:
    turns = [turn for turn in tx.turns.page(session_id, before_number=None, limit=LOOK_BACK) if not turn.superseded]
    done = [turn for turn in turns if turn.state is TurnState.COMPLETED]
    sent: dict[str, int] = {}
    stored = tx.events.read_turns(session_id, [turn.turn_id for turn in reversed(turns)], types=(ModelCalled.TYPE,))
    for item in stored if turns else ():
        event = decode_event(item.type, item.version, item.payload)
        if isinstance(event, ModelCalled) and not is_planning(event.agent):
            sent[event.agent] = event.usage.input_tokens + event.usage.cached_input_tokens + event.usage.output_tokens
    return _Past(sent, tuple(turn.usage for turn in done))


def _mean(used: Sequence[Usage]) -> Usage:
    whole, count = sum(used, Usage()), len(used)
    spent = whole.spent
    return Usage(
        whole.input_tokens // count,
        whole.cached_input_tokens // count,
        whole.output_tokens // count,
        whole.reasoning_tokens // count,
        whole.complete,
        whole.cache_write_tokens // count,
        Cost((spent.micros / count).quantize(Decimal("0.000001")), spent.currency, spent.complete),
    )
