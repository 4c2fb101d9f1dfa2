"""Whatever the ledger holds after a stop, a crash or a switch of models, each wire format's request is valid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.domain.content import BlobRef, Content
from milepost.domain.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from milepost.providers.raw_json import encode
from milepost.providers.sealed import Block, parts_of, seal
from tests.providers.conftest import READ, Make, hear, request, user
from tests.providers.test_conformance import CALLS, chat
from tests.providers.wires import WIRES, Wire
from tests.support.validators import validate
from tests.support.wire_server import Reply, WireServer

FORMATS = [wire for wire in WIRES if wire.format is not None]

TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(["", " ", "\0", "\ud800x", "a\udfff\0", "\n\n"])
IDS = st.sampled_from(["c1", "c2", "toolu_1", "", "bad id\n", "x" * 80, "\ud800", "abcDEF123"])
TOOLS = st.sampled_from(["read_file", "", "no such tool!", "x" * 500, "\0"])
RAW = [
    "{}",
    '{"a": "b"}',
    "",
    '{"a',
    '"{}"',
    "[]",
    "null",
    '{"a": "\0"}',
    '{"\ud800": 1}',
    '{"a": "\\ud800"}',
    '{"a":NaN}',
    '{"a": "\\ud800"}',
    '"{\\"a\\": \\"\\\\ud800\\"}"',
]
ARGUMENTS = st.sampled_from(RAW) | TEXTS
CALL_PARTS = st.builds(lambda i, t, a: ToolCallPart(i, t, Content(a)), IDS, TOOLS, ARGUMENTS)
PARTS = st.builds(TextPart, TEXTS) | st.builds(ReasoningPart, TEXTS) | CALL_PARTS
IMAGES = st.lists(st.just(ImagePart(BlobRef("0" * 64, 4, "image/png"), "a.png", "iVBORw==")), max_size=2)


@st.composite
def sealed(draw: st.DrawFn, wire: Wire) -> AssistantMessage:
    """An answer of this service with its state, as it was recorded: or with a part lost, as nothing should leave it."""
    parts = draw(st.lists(PARTS, min_size=1, max_size=4))
    blocks = [Block(part, wire.beside(part)) for part in parts]
    state = seal(blocks, wire.name, "fake", "fake-small")
    kept = parts_of(blocks)
    return AssistantMessage(kept[draw(st.sampled_from([0, 0, 0, 1])) :], state)


def messages_of(wire: Wire) -> st.SearchStrategy[Message]:
    return (
        st.builds(lambda text, images: UserMessage(Content(text), tuple(images)), TEXTS, IMAGES)
        | st.builds(lambda parts: AssistantMessage(tuple(parts)), st.lists(PARTS, max_size=4))
        | sealed(wire)
        | st.builds(lambda i, t, text, bad: ToolMessage(i, t, Content(text), bad), IDS, TOOLS, TEXTS, st.booleans())
    )


def judge(wire: Wire, conversation: list[Message]) -> None:
    assert wire.format is not None
    config = wire.config(name="fake", base_url="http://127.0.0.1:1/v1", default_model="fake-small", **wire.defaults)
    asked = request(messages=conversation, tools=(READ,))
    body = encode(wire.format(config).outgoing(asked, []).body)
    assert validate(wire.server.format, body.decode()) == []
    # The same conversation is the same bytes.
    assert encode(wire.format(config).outgoing(asked, []).body) == body


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: str(wire.name))
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_conversation_becomes_a_valid_request(wire: Wire, data: st.DataObject) -> None:
    judge(wire, [*data.draw(st.lists(messages_of(wire), max_size=8)), user("last")])


@pytest.mark.slow
@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: str(wire.name))
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_long_conversation_becomes_a_valid_request(wire: Wire, data: st.DataObject) -> None:
    judge(wire, [*data.draw(st.lists(messages_of(wire), max_size=20)), user("last")])


NEIGHBORS = set(itertools.pairwise([*(wire.name for wire in WIRES), WIRES[0].name]))
"""Pairs in which every type is left once and come to once; the other pairs take their time."""

PAIRS = [
    pytest.param(
        (one, two),
        id=f"{one.name}-{two.name}",
        marks=[] if (one.name, two.name) in NEIGHBORS else [pytest.mark.slow],
    )
    for one, two in itertools.permutations(WIRES, 2)
]


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Iterator[list[tuple[Wire, WireServer]]]:
    """Two provider types, each with its fake."""
    made = [(wire, wire.server().start()) for wire in request.param]
    yield made
    for _, server in made:
        server.close()


async def test_models_can_be_switched_in_mid_turn_and_back(
    pair: list[tuple[Wire, WireServer]], make_gateway: Make
) -> None:
    (one, first), (two, second) = pair
    gateway = make_gateway(one.made(first, "one"), two.made(second, "two"))
    for server in (first, second):
        # The same ids again and again, as some servers do.
        server.plan(*(Reply(reasoning="thought", text="I look.", calls=CALLS, ids=ids) for ids in ("same", "normal")))
    answers = []
    for turn, name in enumerate(["one", "two", "one", "two", "one"]):
        asked = request(name, tools=(READ,), messages=chat(*answers), idempotency_key=f"k{turn}")
        answers.append(await hear(gateway, asked))
    assert [len(answer.done.message.calls) for answer in answers] == [2, 2, 2, 2, 0]
    assert [len(server.chats) for server in (first, second)] == [3, 2]
    foreign = answers[1].done.message.provider_state
    assert foreign is None or foreign.data.text[:40] not in first.chats[-1].raw
