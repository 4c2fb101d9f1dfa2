"""The ledger beside the bill of each fake: every wire format, every class of tokens, also answers that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.prices import ModelPrices, PriceList, PriceRule, TokenPrices
from milepost.domain.turns import Turn, TurnState
from milepost.domain.usage import Usage
from milepost.providers.gateway import Gateway
from milepost.providers.pricing import PriceBook
from milepost.services.sessions import OpenSession
from milepost.services.turns import BeginTurn
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.providers.conftest import Secrets, hear, request
from tests.providers.wires import WIRES, Wire
from tests.support.databases import OpenLedger
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import build_stack
from tests.support.wire_server import Reply, Tokens, WireServer

CALL = {"id": "call_1", "name": "list_dir", "arguments": '{"path": "."}'}
MIXED = [Tokens(1000, 0, 70, 0), Tokens(120, 900, 33, 41), Tokens(7, 0, 1, 0), Tokens(0, 5000, 250, 3000)]

WRITES = {"anthropic": [Tokens(3, 100, 5, 0, cache_write=4096), Tokens(50, 0, 5, 9, cache_write=10)]}
"""For services that charge for what they write to their cache."""


def prices_for(wire: Wire) -> TokenPrices:
    """Different prices for each class that the format tells apart; where it tells none, the server bills none apart."""
    seen = wire.counts(Tokens(1, 10, 100, 1000))
    tells_cached, tells_reasoning = seen.cached_input_tokens == 10, seen.reasoning_tokens == 1000
    return TokenPrices(
        input=Decimal("2.5"),
        cached_input=Decimal("0.25") if tells_cached else Decimal("2.5"),
        output=Decimal(10),
        reasoning=Decimal(12) if tells_reasoning else Decimal(10),
        cache_write=Decimal("3.125"),
    )


def bill(server: WireServer, prices: TokenPrices) -> Decimal:
    by_class = {
        "input": prices.input,
        "cached": prices.cached_input,
        "output": prices.output,
        "reasoning": prices.reasoning,
        "cache_write": prices.cache_write,
    }
    return server.invoice({line.model: by_class for line in server.billed})


@pytest.fixture
def servers() -> Iterator[dict[str, WireServer]]:
    made = {wire.name: wire.server() for wire in WIRES}
    for server in made.values():
        server.start()
    yield made
    for server in made.values():
        server.close()


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
async def test_a_ledger_of_calls_is_the_bill(wire: Wire, servers: dict[str, WireServer]) -> None:
    """Whole answers, wherever the format can put its report and however often; cached tokens are counted once."""
    server, prices = servers[wire.name], prices_for(wire)
    gateway = Gateway({"fake": wire.made(server)}, Secrets())
    total = Usage()
    for usage_at in wire.usages:
        for tokens in [*MIXED, *WRITES.get(wire.name, ())]:
            server.plan(Reply(text="Hello there.", tokens=tokens, usage_at=usage_at))
            usage = (await hear(gateway, request())).done.usage
            assert usage.complete, (usage_at, usage)
            assert usage.input_tokens + usage.cached_input_tokens == (
                tokens.input + tokens.cached + tokens.cache_write
            ), (usage_at, usage)
            assert usage.output_tokens + usage.reasoning_tokens == tokens.output + tokens.reasoning
            total += Usage(cost=ModelPrices("v", prices).cost(usage))
    await gateway.close()
    assert total.spent.complete
    assert total.spent.amount == bill(server, prices), "exact, and so within 1 %"


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
async def test_turns_of_every_wire_format_cost_in_the_ledger_what_they_cost_at_the_service(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path, servers: dict[str, WireServer]
) -> None:
    """One turn of each with a tool call, a failure that costs nothing, and classes of all kinds."""
    providers = {wire.name: wire.made(servers[wire.name], wire.name) for wire in WIRES}
    rules = tuple(PriceRule(wire.name, "*", prices_for(wire)) for wire in WIRES)
    agents = {wire.name: AgentConfig(wire.name, wire.name, "fake-small", tools=("list_dir",)) for wire in WIRES}
    gateway = Gateway(providers, Secrets())
    stack = await build_stack(
        opened.ledger,
        opened.notifier,
        FileBlobStore(tmp_path / "blobs"),
        gateway,
        MemorySandboxes(),
        temporal_address,
        agents | {"default": agents["anthropic"]},
        prices=PriceBook(providers, PriceList("bill", packaged=False, rules=rules)),
    )

    async def play(wire: Wire) -> Turn:
        server = servers[wire.name]
        server.plan(
            Reply(calls=[CALL], tokens=MIXED[1]),
            Reply(status=429, headers={"Retry-After": "0"}, body=json.dumps({"error": {"message": "slow down"}})),
            Reply(text="Done.", tokens=MIXED[3]),
        )
        session = await stack.sessions.open(OpenSession(str(tmp_path), agents=(wire.name,)))
        begun = await stack.turns.begin(BeginTurn(session.session_id, "go", agent=wire.name))
        return await stack.ended(begun.turn.turn_id, 90)

    async with stack.worker():
        turns = await asyncio.gather(*(play(wire) for wire in WIRES))
    await gateway.close()
    for wire, turn in zip(WIRES, turns, strict=True):
        assert turn.state is TurnState.COMPLETED, (wire.name, turn.error_message)
        cost, owed = turn.usage.spent, bill(servers[wire.name], prices_for(wire))
        assert cost.complete, wire.name
        assert owed and abs(cost.amount - owed) <= owed / 100, (wire.name, cost.amount, owed)
        used = (await stack.history.usage(turn.session_id)).spending
        assert used.usage == turn.usage, "leaves and root"
