"""What a turn costs: prices recorded at its start, every attempt counted, leaves and root in agreement."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

from milepost.domain.events import AgentOutput, AgentStarted, ModelCalled, ModelFailed, ModelRetried, TurnCompleted
from milepost.domain.prices import ModelPrices, TokenPrices
from milepost.domain.providers import ScriptedProvider
from milepost.domain.usage import Cost, Usage
from milepost.providers.gateway import Gateway
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.support.databases import OpenLedger
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack
from tests.turns.conftest import NoSecrets
from tests.turns.test_turns import events_of


class Changing:
    """Prices that go up every time somebody asks."""

    def __init__(self) -> None:
        self.asked = 0

    async def load(self) -> None:
        return

    def of(self, provider: str, model: str) -> ModelPrices:
        self.asked += 1
        price = Decimal(self.asked)
        return ModelPrices(f"list {self.asked}", TokenPrices(price, price / 10, price * 4, price * 5, price))

    def window(self, provider: str, model: str) -> int | None:
        return None


async def stack_with(
    opened: OpenLedger, address: TemporalAddress, folder: Path, prices: Changing
) -> tuple[Stack, Gateway]:
    gateway = Gateway({"scripted": ScriptedProvider("scripted")}, NoSecrets())
    blobs = FileBlobStore(folder / "blobs")
    sandboxes = MemorySandboxes()
    stack = await build_stack(opened.ledger, opened.notifier, blobs, gateway, sandboxes, address, prices=prices)
    return stack, gateway


async def test_a_turn_is_charged_by_the_prices_of_its_start_and_its_parts_add_up(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    prices = Changing()
    stack, gateway = await stack_with(opened, temporal_address, tmp_path, prices)
    (tmp_path / "w").mkdir()
    session = await stack.open(tmp_path / "w")
    used = {"input": 100, "cached_input": 50, "output": 10, "reasoning": 2}
    answers = [
        {"calls": [{"tool": "list_dir", "args": {"path": "."}}], "usage": used},
        {"fail": {"status": 503, "times": 1}, "text": "Done.", "usage": used},
    ]
    async with stack.worker():
        begun = await stack.send(session, script=json.dumps({"responses": answers}))
        turn = await stack.ended(begun.turn.turn_id)
    events = await events_of(stack, session)
    started = next(event for event in events if isinstance(event, AgentStarted))
    assert prices.asked == 1
    assert [(route.provider, route.model, route.prices.version) for route in started.prices if route.prices] == [
        ("scripted", "demo", "list 1")
    ]
    one = Cost(Decimal(100 + 5 + 40 + 10))
    leaves = [event for event in events if isinstance(event, ModelCalled | ModelRetried | ModelFailed)]
    assert [(type(event).__name__, event.usage.spent) for event in leaves if event.usage.complete] == [
        ("ModelCalled", one),
        ("ModelCalled", one),
    ]
    assert [event.usage.spent for event in leaves if not event.usage.complete] == [Cost(complete=False)]
    total = sum((event.usage for event in leaves), Usage())
    assert total.spent == Cost(one.micros * 2, complete=False)
    output = next(event for event in events if isinstance(event, AgentOutput))
    completed = next(event for event in events if isinstance(event, TurnCompleted))
    assert turn.usage == completed.usage == output.usage == total
    entry = await stack.history.entry(turn.turn_id)
    assert [agent.usage for agent in entry.agents] == [total]
    await gateway.close()
