"""Canonical bytes: every value comes back, and equal values have equal bytes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.content import BlobRef, Content
from milepost.domain.effects import EffectState
from milepost.domain.errors import UnknownEvent
from milepost.domain.events import EVENT_TYPES, InstanceStarted, ModelCalled, RunStarted, ToolFinished
from milepost.domain.messages import (
    AssistantMessage,
    FinishReason,
    ProviderState,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from milepost.domain.usage import Usage
from milepost.ledger.codec import canonical_bytes, decode, decode_event, encode, parse
from milepost.ledger.upcast import STEPS
from tests.ledger.samples import NASTY

TEXT = st.text(st.characters())  # with NUL and lone surrogates, which the default alphabet leaves out
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
CONTENT = st.builds(Content, TEXT, st.none() | st.builds(BlobRef, TEXT, st.integers(), TEXT))
PARTS = st.lists(
    st.builds(TextPart, TEXT) | st.builds(ReasoningPart, TEXT) | st.builds(ToolCallPart, TEXT, TEXT, CONTENT),
    max_size=4,
).map(tuple)
USAGE = st.builds(Usage, st.integers(), st.integers(), st.integers(), st.integers(), st.booleans())


@given(JSON)
def test_json_values_come_back(value: Any) -> None:
    data = canonical_bytes(value)
    assert parse(data) == value
    assert canonical_bytes(parse(data)) == data
    data.decode("utf-8", "strict")  # also with surrogates inside, the bytes are valid UTF-8


@given(st.dictionaries(TEXT, st.integers(), max_size=6))
def test_bytes_do_not_depend_on_the_order_of_keys(value: dict[str, int]) -> None:
    assert canonical_bytes(dict(reversed(value.items()))) == canonical_bytes(value)


@given(CONTENT, PARTS, USAGE, TEXT)
def test_events_come_back(content: Content, parts: Any, usage: Usage, text: str) -> None:
    message = AssistantMessage(parts, ProviderState(text, text, content))
    called = ModelCalled("t", text, "e", 2, 1, "p", "m", message, FinishReason.TOOL_CALLS, usage, (text,))
    finished = ToolFinished(
        "t", "a", "e", 1, 1, 0, text, text, EffectState.FAILED, content, True, {text: [1, text]}, content
    )
    for event in (called, finished):
        assert decode_event(event.TYPE, event.VERSION, encode(event)) == event


@pytest.mark.parametrize("number", [0, -1, 2**63, -(2**63) - 1, 10**60])
def test_integers_have_no_bound(number: int) -> None:
    event = RunStarted("r", "a", {"n": number, "text": NASTY})
    assert decode(encode(event), RunStarted) == event


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_does_not_have_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_bytes({"n": number})


def test_every_event_type_has_its_own_name() -> None:
    assert all(name == EVENT_TYPES[name].TYPE for name in EVENT_TYPES)
    assert all(cls.VERSION >= 1 for cls in EVENT_TYPES.values())


def test_earlier_versions_are_upcast_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(payload: dict[str, Any]) -> dict[str, Any]:
        return {"release": payload["version_string"], "parts": payload["parts"]}

    def third(payload: dict[str, Any]) -> dict[str, Any]:
        return {"release": payload["release"], "roles": payload["parts"].split("+")}

    monkeypatch.setattr(InstanceStarted, "VERSION", 4)
    monkeypatch.setitem(STEPS, (InstanceStarted.TYPE, 1), first)  # version 2 needs no step
    monkeypatch.setitem(STEPS, (InstanceStarted.TYPE, 3), third)
    expected = InstanceStarted("0.1", ("api", "worker"))
    stored = {
        1: {"version_string": "0.1", "parts": "api+worker"},
        2: {"release": "0.1", "parts": "api+worker"},
        3: {"release": "0.1", "parts": "api+worker"},
        4: {"release": "0.1", "roles": ["api", "worker"]},
    }
    for version, payload in stored.items():
        assert decode_event(InstanceStarted.TYPE, version, json.dumps(payload).encode()) == expected


def test_what_a_later_release_wrote_is_named() -> None:
    with pytest.raises(UnknownEvent, match="version 2"):
        decode_event(InstanceStarted.TYPE, 2, b"{}")
    with pytest.raises(UnknownEvent, match=r"run\.paused"):
        decode_event("run.paused", 1, b"{}")


def test_unknown_fields_of_a_known_version_are_ignored() -> None:
    payload = b'{"release":"1","roles":[],"added_later":{"x":1}}'
    assert decode_event(InstanceStarted.TYPE, 1, payload) == InstanceStarted("1", ())
