"""What byte-exactness stands on: raw JSON, events in any pieces, sealed state, ids."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.content import Content
from milepost.domain.messages import AssistantMessage, AssistantPart, ReasoningPart, TextPart, ToolCallPart
from milepost.domain.providers import MistralProvider
from milepost.providers.events import MAX_NOTES, kind_name, note
from milepost.providers.raw_json import RawJson, encode, raw_at, raw_items
from milepost.providers.sealed import Block, joined_signature, parts_of, seal, unseal
from milepost.providers.sse import events
from milepost.providers.wire import WireIds, wire_arguments

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
SPACES = st.text(" \t\n\r", max_size=3)


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """A JSON text of a value with any spaces and escapes."""
    space = [draw(SPACES) for _ in range(3)]
    if isinstance(value, dict):
        members = [f"{space[0]}{json.dumps(key)}{space[1]}:{draw(written(item))}" for key, item in value.items()]
        return f"{space[2]}{{{','.join(members) or space[0]}}}{space[1]}"
    if isinstance(value, list):
        return f"{space[2]}[{','.join(draw(written(item)) for item in value) or space[0]}]{space[1]}"
    return f"{space[0]}{json.dumps(value, ensure_ascii=draw(st.booleans()))}{space[1]}"


@given(st.data(), VALUES)
def test_a_part_is_found_as_it_is_written(data: st.DataObject, value: Any) -> None:
    text, path = data.draw(written(value)), []
    while isinstance(value, dict | list) and value and data.draw(st.booleans()):
        step = data.draw(st.sampled_from(list(value) if isinstance(value, dict) else list(range(len(value)))))
        path.append(step)
        value = value[step]
    found = raw_at(text, *path)
    assert found is not None and found in text and json.loads(found) == value
    items = raw_items(found)
    assert [json.loads(item) for item in items] == (value if isinstance(value, list) else [])
    assert "".join(items) == "" or all(item in found for item in items)


@pytest.mark.parametrize("path", [("b",), (0,), ("a", 2), ("a", "x"), ("a", 0, "x")])
def test_what_is_not_there_is_none(path: tuple[str | int, ...]) -> None:
    assert raw_at('{"a": [1, 2]}', *path) is None


def test_the_last_of_two_members_counts() -> None:
    assert raw_at('{"a": 1, "a": 2.0}', "a") == "2.0" == str(json.loads('{"a": 1, "a": 2.0}')["a"])


@given(VALUES)
def test_documents_are_those_of_the_json_library(value: Any) -> None:
    assert encode(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    assert encode({"raw": RawJson('{ "a":1E2}'), "more": [value]}).startswith(b'{"raw":{ "a":1E2},"more":[')


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=5),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 9),
    st.booleans(),
)
def test_events_come_out_whole_however_they_are_cut(payloads: list[str], end: str, size: int, last_empty: bool) -> None:
    text = f": comment{end}".join(f"event: x{end}data: {payload}{end}{end}" for payload in payloads)
    raw = text.encode() if last_empty else text.encode().removesuffix(end.encode())
    config = MistralProvider("p", "http://127.0.0.1:1")

    async def body() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), size):
            yield raw[start : start + size]

    async def read() -> list[str]:
        return [event async for event in events(body(), config)]

    assert asyncio.run(read()) == payloads


PARTS = st.lists(
    st.builds(TextPart, st.text(max_size=5))
    | st.builds(ReasoningPart, st.text(max_size=5))
    | st.builds(lambda i, a: ToolCallPart(i, "t", Content(a)), st.text(max_size=5), st.text(max_size=5)),
    min_size=1,
    max_size=4,
)


@given(PARTS, st.integers(0, 3), st.text(min_size=1, max_size=4))
def test_a_seal_holds_for_the_very_same_answer_only(parts: list[AssistantPart], at: int, change: str) -> None:
    blocks = [Block(part, {"signature": str(number)}) for number, part in enumerate(parts)]
    blocks.insert(1, Block(None, {"data": "x"}))
    state = seal(blocks, "wire", "p", "m")
    message = AssistantMessage(parts_of(blocks), state)
    opened = unseal(message, "wire", "p", "m")
    held = [part.text for part in parts if isinstance(part, TextPart | ReasoningPart)]
    assert opened == (None if any("\0" in text for text in held) else blocks)
    assert unseal(message, "other", "p", "m") is None
    assert unseal(message, "wire", "q", "m") is None
    assert unseal(message, "wire", "p", "n") is None
    assert state is not None
    damaged = state.data.text.replace('"x"', json.dumps(change))
    assert (
        damaged == state.data.text
        or unseal(AssistantMessage(message.parts, type(state)("p", "m", Content(damaged))), "wire", "p", "m") is None
    )
    part = parts[at % len(parts)]
    other = TextPart(change + (part.text if isinstance(part, TextPart) else ""))
    changed = tuple(other if number == at % len(parts) else same for number, same in enumerate(parts))
    assert unseal(AssistantMessage(changed, state), "wire", "p", "m") is None


@given(st.lists(st.text(max_size=12), max_size=12))
def test_ids_fit_and_never_repeat(call_ids: list[str]) -> None:
    fits = re.compile("[A-Za-z0-9]{9}")
    made = list(map(WireIds(fits, "", 9).next, call_ids))
    assert len(set(made)) == len(made) and all(fits.fullmatch(one) for one in made)
    longer = list(map(WireIds(fits, "", 9).next, [*call_ids, "one more"]))
    assert longer[: len(made)] == made


@given(st.text(max_size=20) | VALUES.map(json.dumps) | VALUES.map(json.dumps).map(json.dumps))
def test_arguments_that_go_out_are_always_an_object(raw: str) -> None:
    sent = wire_arguments(raw)
    parsed = json.loads(sent, parse_constant=lambda name: pytest.fail(name))
    assert isinstance(parsed, dict)
    sent.encode()
    json.dumps(parsed, ensure_ascii=False).encode()
    assert wire_arguments(sent) == sent


@given(st.text("AB", min_size=16, max_size=64), st.integers(1, 15))
def test_a_signature_is_whole_in_whichever_pieces_it_comes(signature: str, size: int) -> None:
    joined = ""
    for start in range(0, len(signature), size):
        joined = joined_signature(joined, signature[start : start + size])
    assert joined == signature
    # Whole once more, as some servers end it.
    assert joined_signature(joined, signature) == signature


def test_notes_are_few_and_name_no_piece_of_a_key() -> None:
    notes: list[str] = []
    for number in range(10_000):
        note(notes, f"note {number % 100}")
    assert len(notes) == MAX_NOTES == len(set(notes))
    assert kind_name("server_tool_use") == "type 'server_tool_use'"
    for kind in ("k" * 41, "key-1", "", None, 7, "type\n"):
        assert kind_name(kind) == "an unknown type"
