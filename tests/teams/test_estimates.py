"""What a turn may use, before it is begun."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from milepost.domain.budgets import Budget, Limits
from milepost.domain.prices import ModelPrices, TokenPrices
from milepost.ports.models import NoTokenCounters
from milepost.ports.prices import NoPrices
from milepost.services.estimates import EstimateService
from milepost.tools import definitions
from tests.support.temporal import Stack
from tests.teams.conftest import AGENTS, OpenTeam, agent, plan, script, subtask


class Prices(NoPrices):
    def of(self, provider: str, model: str) -> ModelPrices:
        one, two = Decimal(1), Decimal(2)
        return ModelPrices("test", TokenPrices(one, one, two, two, one))


def service(stack: Stack, **changed: Any) -> EstimateService:
    agents = dict(AGENTS) | changed
    return EstimateService(stack.parts.ledger, agents, Prices(), NoTokenCounters(), definitions)


async def test_the_calls_of_a_coordinator_that_are_sure(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("lead")
    found = await service(stack).estimate(session, "word " * 1000)
    assert [call.agent for call in found.first] == ["lead:plan", "lead/coder", "lead"]
    assert all(call.usage.input_tokens > 900 for call in found.first)
    assert found.earlier is None and found.turns == 0
    cost = sum(call.usage.input_tokens + 2 * call.usage.output_tokens for call in found.first)
    assert found.least.spent.micros == cost and found.least.spent.complete


async def test_earlier_turns_tell_what_such_turns_use(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("lead")
    text = script(
        {"lead:plan": [plan(subtask("job", tools=("write_file",)))], "lead/coder": ["Done."], "lead": ["All done."]}
    )
    used = []
    async with stack.worker():
        for _ in range(2):
            used.append((await stack.ended((await stack.send(session, "go", text)).turn.turn_id)).usage)
    found = await service(stack).estimate(session, "go on")
    assert found.turns == 2 and found.earlier is not None
    assert found.earlier.input_tokens == (used[0].input_tokens + used[1].input_tokens) // 2
    by_agent = {call.agent: call.usage.input_tokens for call in found.first}
    assert by_agent["lead"] > 20, "it repeats the conversation so far"


async def test_the_tightest_limits_are_named(stack: Stack, open_team: OpenTeam) -> None:
    session = await open_team("scout", "optional")
    changed = {
        "scout": agent("scout", budget=Budget(turn=Limits(tokens=5000, model_calls=9))),
        "optional": agent("optional", budget=Budget(turn=Limits(tokens=700))),
    }
    found = await service(stack, **changed).estimate(session, "x")
    assert (found.limits.tokens, found.limits.model_calls) == (700, 9)
    assert [call.agent for call in found.first] == ["scout", "optional"]
