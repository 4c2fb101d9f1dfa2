"""Whatever a stop, a crash or a switch of models left behind, the next request is valid."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.domain.content import Content
from milepost.domain.messages import (
    AssistantMessage,
    Message,
    ProviderState,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from milepost.domain.providers import EndpointProfile, OpenAICompatibleProvider, SystemRole
from milepost.providers.gateway import Gateway
from milepost.providers.transcript import CANCELLED, normalize
from tests.providers.conftest import READ, Secrets, hear, request, user
from tests.support.openai_server import OpenAIServer
from tests.support.validators.openai_chat import violations

TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(["", " ", "\0", "\ud800x", "a\udfff\0"])
IDS = st.sampled_from(["c1", "c2", "c3", "", "bad id\n", "x" * 60, "\ud800"])
TOOLS = st.sampled_from(["read_file", "", "no such tool!", "x" * 5000, "\0"])
RAW = ["{}", '{"a": "b"}', "", '{"a', '"{}"', "[]", "null", '{"a": "\0"}', '{"\ud800": 1}']
ARGUMENTS = st.sampled_from(RAW) | TEXTS
CALLS = st.builds(lambda i, t, a: ToolCallPart(i, t, Content(a)), IDS, TOOLS, ARGUMENTS)
PARTS = st.builds(TextPart, TEXTS) | st.builds(ReasoningPart, TEXTS) | CALLS
STATES = st.none() | st.builds(
    lambda data: ProviderState("fake", "fake-small", Content(data)),
    st.sampled_from(["", "{}", '{"kind":"response","parts":[{"part_kind":"text","content":""}]}']),
)
MESSAGES: st.SearchStrategy[Message] = (
    st.builds(lambda text: UserMessage(Content(text)), TEXTS)
    | st.builds(lambda parts, state: AssistantMessage(tuple(parts), state), st.lists(PARTS, max_size=4), STATES)
    | st.builds(lambda i, t, text: ToolMessage(i, t, Content(text)), IDS, TOOLS, TEXTS)
)


class Wire:
    """One gateway, server and loop for many examples."""

    def __init__(self, server: OpenAIServer, runner: asyncio.Runner) -> None:
        self.server = server
        self.runner = runner
        url = server.base_url
        as_user = EndpointProfile(system_role=SystemRole.USER)
        self.gateway = Gateway(
            {
                "fake": OpenAICompatibleProvider("fake", url, "fake-small"),
                "as_user": OpenAICompatibleProvider("as_user", url, "fake-small", profile=as_user),
            },
            Secrets(),
        )

    def body(self, messages: list[Message], provider: str = "fake") -> Any:
        """The request that goes out. The server refuses an invalid one with its own copy of the rules."""
        self.server.requests.clear()
        self.runner.run(hear(self.gateway, request(provider, messages=messages, tools=(READ,))))
        return self.server.chats[-1].body


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    server = OpenAIServer().start()
    with asyncio.Runner() as runner:
        made = Wire(server, runner)
        yield made
        runner.run(made.gateway.close())
    server.close()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(MESSAGES, max_size=8), st.sampled_from(["fake", "as_user"]))
def test_any_conversation_becomes_a_valid_request(wire: Wire, messages: list[Message], provider: str) -> None:
    body = wire.body([*messages, user("last")], provider)
    assert violations(body) == []
    assert body["messages"][-1]["content"].endswith("last")


@settings(max_examples=100, deadline=None)
@given(st.lists(MESSAGES, max_size=8))
def test_repairing_twice_changes_nothing_more(messages: list[Message]) -> None:
    once = normalize(messages)
    assert [type(message) for message in normalize(once)] == [type(message) for message in once]
    unique = all(
        len({call.call_id for call in m.calls}) == len(m.calls) for m in once if isinstance(m, AssistantMessage)
    )
    # Calls that share an id share a result, whose tool name is then the first call's.
    assert not unique or normalize(once) == once


def calls(*ids: str, text: str = "") -> AssistantMessage:
    parts = [ToolCallPart(call_id, "read_file", Content("{}")) for call_id in ids]
    return AssistantMessage((*([TextPart(text)] if text else []), *parts))


def result(call_id: str, text: str = "ok") -> ToolMessage:
    return ToolMessage(call_id, "read_file", Content(text))


def test_what_is_right_is_left_alone() -> None:
    messages: list[Message] = [
        user("a"),
        calls("1", "2", text="t"),
        result("1"),
        result("2"),
        AssistantMessage((TextPart("b"),)),
    ]
    assert normalize(messages) == messages


def test_a_stopped_call_gets_a_result() -> None:
    fixed = normalize([user("a"), calls("1", "2"), result("2"), user("go on")])
    assert fixed == [
        user("a"),
        calls("1", "2"),
        ToolMessage("1", "read_file", Content(CANCELLED), is_error=True),
        result("2"),
        user("go on"),
    ]


def test_results_are_brought_to_their_calls() -> None:
    messages: list[Message] = [user("a"), calls("1"), user("b"), result("1"), result("1", "again"), result("9")]
    assert normalize(messages) == [user("a"), calls("1"), result("1"), user("b")]


def test_an_empty_answer_vanishes_and_its_neighbors_join() -> None:
    empty = AssistantMessage((ReasoningPart("only a thought"), TextPart(" \n")))
    assert normalize([user("a"), empty, user("b")]) == [user("a\n\nb")]
    assert normalize([user("a"), calls("1"), empty, result("1")]) == [user("a"), calls("1"), result("1")]


def test_two_answers_in_a_row_join_without_state() -> None:
    first = AssistantMessage((TextPart("a"),), ProviderState("p", "m", Content("{}")))
    (joined,) = normalize([first, AssistantMessage((TextPart("b"),))])
    assert isinstance(joined, AssistantMessage)
    assert (joined.text, joined.provider_state) == ("a\n\nb", None)


def test_the_rules_themselves_find_faults() -> None:
    good: list[dict[str, Any]] = [{"role": "user", "content": "a"}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    answered = {"role": "tool", "tool_call_id": "1", "content": "r"}
    assert violations({"model": "m", "messages": [*good, asked, answered]}) == []
    for bad in (
        [],
        [*good, *good],
        [*good, asked],
        [*good, answered],
        [*good, asked, *good],
        [*good, {"role": "assistant", "content": None}],
        [*good, {**asked, "tool_calls": [call, call]}, answered],
        [{"role": "user", "content": "\0"}],
        [*good, {"role": "system", "content": "late"}],
    ):
        assert violations({"model": "m", "messages": bad})
