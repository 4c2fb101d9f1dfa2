"""Long-term memory as tools of an agent: recorded effects, namespaces of the turn, one write for one effect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.effects import EffectClass
from milepost.domain.errors import ToolFailed, ToolRejected
from milepost.domain.longterm import LONG_TERM_TOOLS, AgentLongTerm
from milepost.ports.ledger import Ledger
from milepost.ports.tools import Call, NoCustomTools
from milepost.services.longterm.tools import LongTermTools
from milepost.tools.planning import plan_custom
from tests.memory.longterm import Bench, bench

READ, SEARCH, WRITE, DELETE = LONG_TERM_TOOLS
AGENTS = {
    "helper": AgentConfig("helper", "scripted", "demo", long_term=AgentLongTerm(("support", "shared"), 30)),
    "plain": AgentConfig("plain", "scripted", "demo"),
}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """The stores are tested on both databases with their own suite; here the second one is for the slow run."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


def tools(bench: Bench) -> LongTermTools:
    return LongTermTools(NoCustomTools(), bench.memory, AGENTS)


async def call(tools: LongTermTools, name: str, effect: str = "e1", agent: str = "helper", **arguments: Any) -> Any:
    """A call as a turn makes it: checked against the definition that the turn recorded."""
    ((definition, tool),) = tools.offered([name], agent)
    planned = plan_custom(definition, json.dumps(arguments), tool.timeout, defaults=True)
    made = Call(name, planned.arguments, effect, "ses_1", "trn_1", agent, "call_1")
    return json.loads((await tools.run(made, planned.timeout)).text)


async def test_a_turn_writes_finds_and_reads(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    own = tools(bench_)
    assert await call(own, WRITE, key="ada", text="prefers concise notes", metadata={"team": "docs"}) == {
        "key": "ada",
        "version": 1,
    }
    await call(own, WRITE, "e2", key="plan", value={"tier": "gold"}, text="gold plan", namespace="shared")
    (hit,) = (await call(own, SEARCH, query="concise", mode="text", filters={"team": "docs"}))["hits"]
    assert hit == {
        "key": "ada",
        "score": 1_000_000,
        "version": 1,
        "text": "prefers concise notes",
        "metadata": {"team": "docs"},
    }
    assert (await call(own, SEARCH, query="gold"))["hits"] == []
    read = await call(own, READ, key="plan", namespace="shared")
    assert read["content"] == {"type": "json", "value": {"tier": "gold"}, "text": "gold plan"}
    assert read["written_by"] == "agent helper"
    record = await bench_.memory.get("support", "ada")
    assert (record.provenance.run_id, record.provenance.effect_id) == ("trn_1", "e1")
    # The agent's own retention, in whole days.
    assert record.expires_at == record.created_at + 30 * 86_400_000_000


async def test_one_effect_writes_once(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    own = tools(bench_)
    for _ in range(2):
        assert (await call(own, WRITE, key="a", text="one", expected_version=0))["version"] == 1
    assert (await call(own, WRITE, "e2", key="a", text="two"))["version"] == 2
    with pytest.raises(ToolFailed, match="not of version 1"):
        await call(own, WRITE, "e3", key="a", text="three", expected_version=1)
    with pytest.raises(ToolFailed, match="no text"):
        await call(own, WRITE, "e4", key="a")
    own_call = Call(DELETE, {"key": "a", "namespace": "support"}, "e5", "s", "t", "helper", "c")
    assert (await own.run(own_call, 10)).text == "The record is deleted."
    # Made again after a crash: that it is gone is what was wanted.
    again = await own.run(own_call, 10)
    assert (again.text, again.is_error) == ("There is no such record.", False)
    with pytest.raises(ToolFailed, match="no record 'a'"):
        await call(own, READ, key="a")


async def test_an_agent_has_its_namespaces_only(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    own = tools(bench_)
    with pytest.raises(ToolRejected, match="'namespace' must be one of"):
        await call(own, READ, key="a", namespace="secret")
    await call(own, WRITE, agent="plain", key="a", text="x")
    assert (await bench_.memory.get("plain", "a")).text == "x"
    offered = {definition.name: tool for definition, tool in own.offered(LONG_TERM_TOOLS, "helper")}
    assert {name: tool.policy.effect_class for name, tool in offered.items()} == {
        READ: EffectClass.OBSERVE,
        SEARCH: EffectClass.OBSERVE,
        WRITE: EffectClass.KEYED,
        DELETE: EffectClass.KEYED,
    }
    assert own.problems() == {}
