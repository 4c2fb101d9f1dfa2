"""Whole turns on services with a wire format of their own: what was signed passes the ledger and goes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from milepost.bootstrap.system import UuidIds
from milepost.domain.agents import AgentConfig
from milepost.domain.errors import SecretMissing
from milepost.domain.events import ModelCalled
from milepost.domain.turns import TurnState
from milepost.providers.gateway import Gateway
from milepost.services.live import Cursor, LiveService
from milepost.services.rewinds import RewindService, RewindTo
from milepost.snapshots import GitSnapshots
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.providers.wires import WIRES, Wire
from tests.support.databases import OpenLedger
from tests.support.temporal import Stack, build_stack
from tests.support.validators import anthropic, gemini, mistral
from tests.support.wire_server import Reply, WireServer
from tests.turns.test_turns import events_of

RAW = '{"path": "a.txt",  "n":1.0, "e":1E2, "s":"\\u00fc"}'
THOUGHT = " First\n\u2028 I think. "
SIGNATURES = {
    "anthropic": anthropic.sign(THOUGHT),
    "gemini": gemini.sign("2"),
    "mistral": mistral.sign(THOUGHT),
}


class NoSecrets:
    def resolve(self, reference: str) -> str:
        raise SecretMissing(f"The secret reference '{reference}' has no value.", field=reference)


@pytest.fixture(params=[wire for wire in WIRES if wire.name in SIGNATURES], ids=lambda wire: str(wire.name))
async def service(
    request: pytest.FixtureRequest, opened: OpenLedger, temporal_address: TemporalAddress, tmp_path: Path
) -> AsyncIterator[tuple[Wire, WireServer, Stack]]:
    wire: Wire = request.param
    server = wire.server().start()
    gateway = Gateway({"service": wire.made(server, "service")}, NoSecrets())
    agent = AgentConfig("default", "service", "fake-small", tools=())
    blobs = FileBlobStore(tmp_path / "blobs")
    stack = await build_stack(
        opened.ledger, opened.notifier, blobs, gateway, None, temporal_address, {"default": agent}
    )
    yield wire, server, stack
    await gateway.close()
    server.close()


async def test_a_turn_with_thinking_and_a_call_and_the_turn_after_it(
    service: tuple[Wire, WireServer, Stack], tmp_path: Path
) -> None:
    wire, server, stack = service
    calls = [{"name": "read_file", "arguments": RAW}]
    server.plan(
        Reply(reasoning=THOUGHT, text="I look.", calls=calls, piece=40, extra={"signature_pieces": 3}),
        Reply(text="Done."),
    )
    session = await stack.open(tmp_path)
    async with stack.worker():
        first = await stack.ended((await stack.send(session)).turn.turn_id)
        second = await stack.ended((await stack.send(session)).turn.turn_id)
    assert [first.state, second.state] == [TurnState.COMPLETED, TurnState.COMPLETED]
    called = [event for event in await events_of(stack, session) if isinstance(event, ModelCalled)]
    assert [event.message.text for event in called[:2]] == ["I look.", "Done."]
    assert called[0].message.calls[0].arguments.text == RAW
    # The fake judged each request by its service's rules; what it was sent back is what it had sent.
    _, answered, later = server.chats
    for seen in (answered, later):
        assert RAW in seen.raw or json.dumps(RAW)[1:-1] in seen.raw
        assert SIGNATURES[wire.name] in seen.raw
    said = [json.dumps(seen.body[wire.messages_key])[:-1] for seen in server.chats]
    assert said[1].startswith(said[0]) and said[2].startswith(said[1])
    assert first.usage.complete and first.usage.output_tokens == 14


@pytest.mark.slow
async def test_a_stop_in_mid_thinking_a_change_of_model_and_a_rewind_leave_a_conversation_that_is_taken(
    service: tuple[Wire, WireServer, Stack], tmp_path: Path
) -> None:
    wire, server, stack = service
    calls = [{"name": "read_file", "arguments": RAW}]
    signed = Reply(reasoning=THOUGHT, text="I look.", calls=calls, piece=40, extra={"signature_pieces": 3})
    server.plan(signed, Reply(text="Done."), Reply(reasoning="Half a thought " * 200, delay=0.05))
    rewinds = RewindService(stack.parts.ledger, stack.parts.clock, UuidIds(), GitSnapshots(tmp_path / "snapshots"))
    session = await stack.open(tmp_path)
    async with stack.worker():
        await stack.ended((await stack.send(session)).turn.turn_id)
        cut = (await stack.send(session, "think")).turn
        await first_reasoning(stack, session)
        await stack.turns.stop(cut.turn_id, actor="test")
        stopped = await stack.ended(cut.turn_id)
        after = await stack.ended((await stack.send(session, "go on")).turn.turn_id)
        other = await stack.ended((await stack.send(session, "and now", model="fake-large")).turn.turn_id)
        await rewinds.rewind(RewindTo(session, "test", 1))
        again = await stack.ended((await stack.send(session, "once more")).turn.turn_id)
    assert stopped.state is TurnState.STOPPED
    # The fake refuses what its service would refuse.
    states = [after.state, other.state, again.state]
    assert states == [TurnState.COMPLETED] * 3, [turn.error_message for turn in (after, other, again)]
    *_, third, fourth, fifth = server.chats
    assert all("Half a thought" not in seen.raw for seen in (third, fourth, fifth)), "nobody signed it"
    assert [SIGNATURES[wire.name] in seen.raw for seen in (third, fourth, fifth)] == [True, False, True]
    assert "go on" not in fifth.raw and "and now" not in fifth.raw


async def first_reasoning(stack: Stack, session_id: str) -> None:
    live = LiveService(stack.parts.ledger, stack.parts.notifier, stack.parts.clock)
    async with asyncio.timeout(30):
        async for frame in live.follow(session_id, Cursor()):
            if frame.type == "delta" and "Half" in str(frame.data["text"]):
                return
