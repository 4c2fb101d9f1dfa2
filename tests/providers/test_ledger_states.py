"""Whatever the ledger holds after a stop, crash, cut, rewind or switch of models, every type's next request is valid.

The turns are cut off at any event; their answers were written by any of the services, with the state that each keeps.
Turns may be missing at the beginning (a conversation that did not fit) and in between (a rewind), and the conversation
may have been compacted at any place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.domain.compaction import Boundary
from milepost.domain.content import Content
from milepost.domain.events import ContextCompacted, Event, ModelCalled
from milepost.domain.messages import AssistantMessage, Message
from milepost.ledger.codec import decode, encode
from milepost.ledger.compacted import Compacted, compacted_parts, seen_from, summary_message
from milepost.ledger.transcript import Part, turn_messages
from milepost.ledger.transcript import parts_of as turns_of
from milepost.providers.gateway import Gateway
from milepost.providers.raw_json import encode as encode_body
from milepost.providers.sealed import Block, parts_of, seal
from tests.providers.conftest import READ, Secrets, hear, request, user
from tests.providers.wires import WIRE_PARAMETERS, WIRES, Wire
from tests.support.validators import validate
from tests.support.wire_server import WireServer
from tests.unit.streams import AGENTS, texts, turns

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
    """What a model gets of a Session at its next call: after a compaction at any place, or none."""
    agent, readable = draw(st.sampled_from(AGENTS)), draw(st.booleans())
    parts: list[Part] = []
    played = draw(st.lists(turns(), max_size=4))
    for back, events in zip(range(len(played), 0, -1), played, strict=True):
        if draw(st.booleans()):
            kept: list[Event] = [draw(written(event)) if isinstance(event, ModelCalled) else event for event in events]
            parts += turns_of(turn_messages(kept, agent, readable=readable), len(played) - back, back - 1)
    found = draw(st.none() | compactions())
    messages = [message for part in compacted_parts(parts, found, readable=readable) for message in part.messages]
    if found is not None and found.event.summary is not None:
        messages.insert(0, summary_message(found.event, found.event.summary.text, readable=readable))
    return [*messages, user("go on")]


boundaries = st.builds(Boundary, st.integers(0, 4), st.integers(0, 3))


@st.composite
def compactions(draw: st.DrawFn) -> Compacted:
    """A compaction at any place, seen from a later turn or its own."""
    covered = draw(st.none() | boundaries)
    event = ContextCompacted(
        turn_id="trn_1",
        agent="coder",
        round=1,
        number=1,
        window=8_000,
        tokens_before=7_000,
        tokens_after=3_000,
        clipped=draw(st.none() | boundaries),
        covered=covered,
        covered_turns=draw(st.integers(0, 3)),
        covered_rounds=draw(st.integers(0, 3)),
        summary=None if covered is None else Content(draw(texts)),
    )
    return seen_from(decode(encode(event), ContextCompacted), draw(st.integers(0, 2)))


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
