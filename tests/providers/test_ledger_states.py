"""Whatever the ledger holds after a stop, crash, cut, rewind or switch of models, every type's next request is valid.

The turns are cut off at any event; their answers were written by any of the services, with the state that each keeps.
Turns may be missing at the beginning (a conversation that did not fit) and in between (a rewind).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.domain.events import Event, ModelCalled
from milepost.domain.messages import AssistantMessage, Message
from milepost.ledger.codec import decode, encode
from milepost.ledger.transcript import turn_messages
from milepost.providers.gateway import Gateway
from milepost.providers.raw_json import encode as encode_body
from milepost.providers.sealed import Block, parts_of, seal
from tests.providers.conftest import READ, Secrets, hear, request, user
from tests.providers.wires import WIRE_PARAMETERS, WIRES, Wire
from tests.support.validators import validate
from tests.support.wire_server import WireServer
from tests.unit.streams import AGENTS, turns

FORMATS = [wire for wire in WIRES if wire.format is not None]
MODELS = ("fake-small", "fake-large")


@st.composite
def written(draw: st.DrawFn, called: ModelCalled) -> ModelCalled:
    """The answer as one of the services would have left it: with its state, through the ledger's own codec."""
    author, model = draw(st.sampled_from([None, *FORMATS])), draw(st.sampled_from(MODELS))
    if author is not None:
        blocks = [Block(part, author.beside(part)) for part in called.message.parts]
        state = seal(blocks, author.name, author.name, model)
        called = replace(called, provider=author.name, model=model, message=AssistantMessage(parts_of(blocks), state))
    return decode(encode(called), ModelCalled)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """What a model gets of a Session at its next turn."""
    agent = draw(st.sampled_from(AGENTS))
    messages: list[Message] = []
    for events in draw(st.lists(turns(), max_size=4)):
        if draw(st.booleans()):
            kept: list[Event] = [draw(written(event)) if isinstance(event, ModelCalled) else event for event in events]
            messages.extend(turn_messages(kept, agent))
    return [*messages, user("go on")]


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: str(wire.name))
@settings(max_examples=30, deadline=None)
@given(conversations(), st.sampled_from(MODELS))
def test_every_state_of_the_ledger_becomes_a_valid_request(wire: Wire, messages: list[Message], model: str) -> None:
    assert wire.format is not None
    config = wire.config(name=wire.name, base_url="http://127.0.0.1:1", **wire.defaults)
    asked = request(wire.name, messages=messages, model=model, tools=(READ,))
    sent = wire.format(config).outgoing(asked, [])
    body = encode_body(sent.body).decode()
    assert validate(wire.server.format, body) == []
    assert "go on" in body
    again = wire.format(config).outgoing(asked, [])
    assert encode_body(again.body).decode() == body, "the same conversation is the same bytes"


@pytest.fixture(scope="module", params=[each for each in WIRE_PARAMETERS if each.values[0].format is None])
def calling(request: pytest.FixtureRequest) -> Iterator[tuple[WireServer, asyncio.Runner, Gateway]]:
    """A gateway on the fake of a type that stands on a library: its requests are looked at on the wire."""
    wire: Wire = request.param
    server = wire.server().start()
    with asyncio.Runner() as runner:
        gateway = Gateway({"fake": wire.made(server)}, Secrets())
        yield server, runner, gateway
        runner.run(gateway.close())
    server.close()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=conversations())
def test_and_on_the_wire_of_the_others(
    calling: tuple[WireServer, asyncio.Runner, Gateway], messages: list[Message]
) -> None:
    server, runner, gateway = calling
    server.requests.clear()
    # The server answers an invalid request with 400, which would be raised here.
    runner.run(hear(gateway, request(messages=messages, tools=(READ,))))
    (seen,) = server.chats
    assert validate(server.format, json.dumps(seen.body)) == []
