"""Each request of a Session begins with the bytes of the one before, so that a provider's prompt cache is of use."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.domain.agents import ALL_TOOLS, AgentConfig
from milepost.domain.memory import MemorySettings
from milepost.domain.turns import TurnState
from milepost.memory.block_files import FileBlocks
from milepost.memory.daily_files import FileDailyLog
from milepost.providers.gateway import Gateway
from milepost.services.memory_stores import MemoryStores
from milepost.services.sessions import OpenSession
from milepost.services.turns import BeginTurn
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.providers.conftest import Secrets
from tests.providers.wires import WIRES, Wire
from tests.support.databases import OpenLedger
from tests.support.sandboxes import MemorySandboxes
from tests.support.semantic import WordMemory
from tests.support.temporal import build_stack
from tests.support.wire_server import Reply, WireServer

TRICKY = 'Ünïcödé 日本語 🧭, "quotes", \\ and </tags>'


@pytest.fixture
def servers() -> Iterator[dict[str, WireServer]]:
    made = {wire.name: wire.server() for wire in WIRES}
    for server in made.values():
        server.start()
    yield made
    for server in made.values():
        server.close()


def head(wire: Wire, body: dict[str, Any]) -> str:
    """All of a request before its conversation: model, system prompt (with whatever is injected into it), tools in
    their order, settings. A core block that changes
    changes nothing here: it is told with the next request."""
    names = list(body)
    if wire.format is not None:
        assert names[-1] == wire.messages_key, "nothing comes after the conversation"
    return json.dumps({name: value for name, value in body.items() if name != wire.messages_key}, ensure_ascii=False)


def conversation(wire: Wire, body: dict[str, Any]) -> str:
    """The messages as they are sent, without the bracket that closes their list."""
    return json.dumps(body[wire.messages_key], ensure_ascii=False).removesuffix("]")


def assert_one_prefix(wire: Wire, bodies: list[dict[str, Any]]) -> None:
    assert len({hashlib.sha256(head(wire, body).encode()).hexdigest() for body in bodies}) == 1, wire.name
    texts = [conversation(wire, body) for body in bodies]
    for number, (before, after) in enumerate(itertools.pairwise(texts), 1):
        assert after.startswith(before), f"{wire.name}: request {number} is no prefix of the next one"
    assert len(texts[-1]) > len(texts[0])


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("turns", [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_a_request_begins_with_the_one_before(
    opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path, servers: dict[str, WireServer], turns: int
) -> None:
    """Over turns with tools, results, reasoning and text that careless encoders write in more than one way."""
    wires = [wire for wire in WIRES if turns == 3 or wire.name in ("openai_compatible", "anthropic")]
    providers = {wire.name: wire.made(servers[wire.name], wire.name) for wire in wires}
    agents = {
        wire.name: AgentConfig(wire.name, wire.name, "fake-small", tools=ALL_TOOLS, memory=MemorySettings())
        for wire in wires
    }
    gateway = Gateway(providers, Secrets())
    stack = await build_stack(
        opened.ledger,
        opened.notifier,
        FileBlobStore(tmp_path / "blobs"),
        gateway,
        MemorySandboxes(),
        temporal_address,
        agents | {"default": agents["anthropic"]},
        memory=MemoryStores(FileBlocks(tmp_path), FileDailyLog(tmp_path), WordMemory()),
    )

    async def converse(wire: Wire) -> None:
        server = servers[wire.name]
        session = (await stack.sessions.open(OpenSession(str(tmp_path), agents=(wire.name,)))).session_id
        for number in range(turns):
            arguments = json.dumps({"path": f"{TRICKY} {number}"}, ensure_ascii=False)
            call = {"id": f"call_{number}", "name": "list_dir", "arguments": arguments}
            if number % 3 == 0:
                # What it writes is told with the next turn's request, and changes nothing before it.
                arguments = json.dumps({"block": "project", "text": f"{TRICKY} {number}"}, ensure_ascii=False)
                call = {"id": f"call_{number}", "name": "core_memory_append", "arguments": arguments}
            thought = f"I think, {number}."
            server.plan(
                Reply(text=f"{TRICKY} first.", reasoning=thought, calls=[call]),
                Reply(text=f"{TRICKY} done {number}.", reasoning=thought),
            )
            text = f"Turn {number}: {TRICKY}"
            begun = await stack.turns.begin(BeginTurn(session, text, agent=wire.name))
            turn = await stack.ended(begun.turn.turn_id, 110)
            assert turn.state is TurnState.COMPLETED, (wire.name, turn.error_message)

    async with stack.worker():
        await asyncio.gather(*(converse(wire) for wire in wires))
    await gateway.close()
    for wire in wires:
        bodies = [call.body for call in servers[wire.name].chats]
        assert len(bodies) == 2 * turns
        assert_one_prefix(wire, bodies)
        assert "core_memory" in head(wire, bodies[0]) and "recall_search" in head(wire, bodies[0])
        told = json.dumps(f"{TRICKY} 0", ensure_ascii=False)[1:-1]
        assert "core_memory_changed" in conversation(wire, bodies[-1]) and told in conversation(wire, bodies[-1])


async def test_the_key_of_the_prompt_cache_is_one_for_an_agent_of_a_session() -> None:
    from tests.providers.conftest import hear, request

    wire = next(wire for wire in WIRES if wire.name == "openai")
    server = wire.server()
    server.start()
    gateway = Gateway({"fake": wire.made(server)}, Secrets())
    try:
        await hear(gateway, request(cache_key="k" * 32))
        await hear(gateway, request())
    finally:
        await gateway.close()
        server.close()
    assert [call.body.get("prompt_cache_key") for call in server.chats] == ["k" * 32, None]
