"""Turns that use long-term memory: what is recorded, and that a lost worker repeats nothing that has its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.effects import EffectClass, EffectState
from milepost.domain.events import AgentStarted, ToolFinished
from milepost.domain.longterm import LONG_TERM_TOOLS, AgentLongTerm
from milepost.domain.providers import ScriptedProvider
from milepost.domain.turns import TurnState
from milepost.ports.tools import NoCustomTools
from milepost.providers.gateway import Gateway
from milepost.services.longterm.tools import LongTermTools
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.memory.longterm import Known, bench
from tests.support.databases import OpenLedger
from tests.support.temporal import build_stack
from tests.turns.conftest import NoSecrets
from tests.turns.test_turns import call, events_of, script

READ, SEARCH, WRITE, _ = LONG_TERM_TOOLS


class Held(Known):
    """An embedder that can be made to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived, self.free = asyncio.Event(), asyncio.Event()
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        self.texts += texts
        if "wait" in texts[0]:
            self.arrived.set()
            await self.free.wait()
        return await super().embed(texts)


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway({"scripted": ScriptedProvider("scripted")}, NoSecrets())
    yield gateway
    await gateway.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """The stores are tested on both databases with their own suite; here the second one is for the slow run."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


async def test_a_lost_worker_repeats_nothing_that_has_its_end(
    opened: OpenLedger, gateway: Gateway, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    embedder = Held()
    memory = bench(opened.ledger, embedder).memory
    agents = {
        "default": AgentConfig(
            "default", "scripted", "demo", tools=(READ, SEARCH, WRITE), long_term=AgentLongTerm(("notes",))
        )
    }
    tools = LongTermTools(NoCustomTools(), memory, agents)
    blobs = FileBlobStore(tmp_path / "blobs")
    stack = await build_stack(
        opened.ledger, opened.notifier, blobs, gateway, None, temporal_address, agents, custom_tools=tools
    )
    session = await stack.open(tmp_path)
    calls = [
        call(WRITE, key="ada", text="prefers concise notes"),
        call(SEARCH, query="notes wait"),
        call(READ, key="ada"),
    ]
    plan = script({"calls": calls[:2]}, {"calls": calls[2:]}, {"text": "Done."})
    async with stack.worker(grace=0.1):
        begun = await stack.send(session, script=plan)
        await asyncio.wait_for(embedder.arrived.wait(), 60)
    embedder.free.set()
    async with stack.worker():
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    events = await events_of(stack, session)
    started = next(event for event in events if isinstance(event, AgentStarted))
    assert {definition.name for definition in started.tools} == {READ, SEARCH, WRITE}
    assert all(tool.parameters["properties"]["namespace"]["enum"] == ["notes"] for tool in started.tools)
    wrote, searched, read = [event for event in events if isinstance(event, ToolFinished)]
    assert json.loads(wrote.output.text) == {"key": "ada", "version": 1}
    assert [hit["key"] for hit in json.loads(searched.output.text)["hits"]] == ["ada"]
    assert json.loads(read.output.text)["content"] == {"type": "text", "text": "prefers concise notes"}
    # The write was embedded once and made once; only the search that had no end was made again.
    assert embedder.texts == ["prefers concise notes", "notes wait", "notes wait"]
    assert (await memory.get("notes", "ada")).version == 1
    effects = {effect.spec.operation: effect for effect in await stack.history.effects(session)}
    assert {name: effects[f"tool:{name}"].attempt for name in (WRITE, SEARCH, READ)} == {WRITE: 1, SEARCH: 2, READ: 1}
    assert effects[f"tool:{WRITE}"].spec.effect_class is EffectClass.KEYED
    assert {effects[f"tool:{name}"].state for name in (WRITE, SEARCH, READ)} == {EffectState.SUCCEEDED}
    record = await memory.get("notes", "ada")
    assert record.provenance.effect_id == effects[f"tool:{WRITE}"].spec.idempotency_key
    assert record.provenance.run_id == begun.turn.turn_id
