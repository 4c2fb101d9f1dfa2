"""What is the messages API's own: thinking with signatures, caching, budgets, and what a request must look like."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from milepost.domain.content import BlobRef, Content
from milepost.domain.errors import ModelAnswerMalformed, ModelRequestRejected, ModelUnavailable
from milepost.domain.messages import (
    AssistantMessage,
    ImagePart,
    ReasoningPart,
    ResponseFormat,
    Sampling,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from milepost.domain.providers import AnthropicProfile, AnthropicProvider
from milepost.domain.usage import Usage
from milepost.providers.events import MAX_NOTES
from milepost.providers.gateway import Gateway
from tests.providers.conftest import KEY, READ, Make, hear, request, user
from tests.providers.test_conformance import CALLS, RAW_A, chat
from tests.support.anthropic_server import AnthropicServer
from tests.support.validators.anthropic import redacted, sign
from tests.support.wire_server import Reply, Tokens

Endpoint = Callable[..., Gateway]
THINKS = AnthropicProfile(thinking="budget")
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
IMAGE = ImagePart(BlobRef("0" * 64, 8, "image/png"), "plan.png", PNG)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    made = AnthropicServer().start()
    yield made
    made.close()


@pytest.fixture
def fake(make_gateway: Make, server: AnthropicServer) -> Endpoint:
    def make(profile: AnthropicProfile = THINKS, **changes: Any) -> Gateway:
        values = {"base_url": server.base_url, "default_model": "fake-small", "profile": profile, **changes}
        return make_gateway(AnthropicProvider("fake", **values))

    return make


async def test_everything_is_on_the_wire_and_nothing_else(fake: Endpoint, server: AnthropicServer) -> None:
    server.key = KEY
    profile = AnthropicProfile(extra_body={"service_tier": "standard_only"})
    sampling = Sampling(
        temperature=0.5, top_p=0.9, max_tokens=100, stop=("END",), response_format=ResponseFormat(SCHEMA)
    )
    messages = [UserMessage(Content("look"), (IMAGE,))]
    gateway = fake(profile, api_key="env:KEY", headers={"anthropic-beta": "x-1"})
    await hear(gateway, request(tools=(READ,), sampling=sampling, messages=messages))
    (seen,) = server.chats
    mark = {"type": "ephemeral"}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    assert seen.path == "/v1/messages"
    assert seen.body == {
        "model": "fake-small",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "You are a test.", "cache_control": mark}],
        "tools": [{"name": "read_file", "description": "Read a file.", "input_schema": READ.parameters}],
        "stream": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "cache_control": mark,
        "service_tier": "standard_only",
        "messages": [{"role": "user", "content": [image, {"type": "text", "text": "look"}]}],
    }
    expected = {"host", "accept", "content-type", "content-length", "user-agent", "accept-encoding"}
    assert set(seen.headers) == expected | {"x-api-key", "anthropic-version", "anthropic-beta"}


@pytest.mark.parametrize(
    ("profile", "sampling", "sent", "said"),
    [
        (AnthropicProfile(), Sampling(reasoning_effort="low"), {}, "'reasoning_effort'"),
        (THINKS, Sampling(), {"thinking": {"type": "enabled", "budget_tokens": 4096}}, None),
        (
            THINKS,
            Sampling(reasoning_effort="low", temperature=0.3, top_p=0.5),
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
            "'temperature'",
        ),
        (THINKS, Sampling(reasoning_effort="none", temperature=0.3), {"temperature": 0.3}, None),
        (THINKS, Sampling(max_tokens=2000), {"thinking": {"type": "enabled", "budget_tokens": 1999}}, "cut from 4096"),
        (THINKS, Sampling(max_tokens=500), {}, "no room for thinking"),
        (THINKS, Sampling(reasoning_effort="?"), {"thinking": {"type": "enabled", "budget_tokens": 4096}}, "unknown"),
        (
            AnthropicProfile(thinking="adaptive"),
            Sampling(reasoning_effort="max"),
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
            None,
        ),
        (
            AnthropicProfile(unsupported=frozenset({"temperature"}), supports_tools=False, supports_images=False),
            Sampling(temperature=0.5),
            {},
            "'temperature'",
        ),
        (AnthropicProfile(), Sampling(response_format=ResponseFormat()), {}, "'response_format'"),
        (AnthropicProfile(json_output="none"), Sampling(response_format=ResponseFormat(SCHEMA)), {}, "response_format"),
    ],
)
async def test_settings_by_profile(
    fake: Endpoint,
    server: AnthropicServer,
    profile: AnthropicProfile,
    sampling: Sampling,
    sent: dict[str, Any],
    said: str | None,
) -> None:
    heard = await hear(fake(profile), request(sampling=sampling))
    body = server.chats[0].body
    always = {"model", "max_tokens", "system", "stream", "cache_control", "messages"}
    assert {key: value for key, value in body.items() if key not in always} == sent
    assert (said or "") in " ".join(heard.done.diagnostics)
    assert bool(heard.done.diagnostics) == (said is not None)


@pytest.mark.parametrize(("cache", "mark"), [("1h", {"type": "ephemeral", "ttl": "1h"}), ("off", None)])
async def test_the_cache_is_marked_as_configured(
    fake: Endpoint, server: AnthropicServer, cache: Any, mark: dict[str, str] | None
) -> None:
    await hear(fake(AnthropicProfile(prompt_cache=cache)), request(tools=(READ,)))
    await hear(fake(AnthropicProfile(prompt_cache=cache)), request(tools=(READ,), system_prompt=" "))
    with_prompt, without = (seen.body for seen in server.chats)
    assert with_prompt.get("cache_control") == with_prompt["system"][-1].get("cache_control") == mark
    assert without.get("cache_control") == without["tools"][-1].get("cache_control") == mark
    assert "system" not in without


async def test_what_was_written_to_the_cache_is_input(fake: Endpoint, server: AnthropicServer) -> None:
    server.plan(Reply(text="x", tokens=Tokens(10, 40, 5, cache_write=90)))
    usage = (await hear(fake(), request())).done.usage
    assert usage == Usage(100, 40, 5, cache_write_tokens=90)


@pytest.mark.parametrize(
    "usage",
    [{"input_tokens": "3", "output_tokens": 2}, [], 7, {"input_tokens": 3, "output_tokens": float("inf")}, {}],
)
async def test_odd_usage_is_unknown_usage(fake: Endpoint, server: AnthropicServer, usage: Any) -> None:
    server.plan(Reply(text="whole", events=_events(usage)))
    done = (await hear(fake(), request())).done
    assert (done.message.text, done.usage.complete) == ("whole", False)


def _events(usage: Any) -> list[Any]:
    return [
        {"type": "message_start", "message": {"model": "m", "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "whole"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
    ]


async def test_the_first_report_of_the_output_is_not_the_answers(fake: Endpoint, server: AnthropicServer) -> None:
    events = _events({"input_tokens": 3, "output_tokens": 1})
    del events[-1]["usage"]
    server.plan(Reply(events=events))
    usage = (await hear(fake(), request())).done.usage
    assert usage == Usage(3, output_tokens=1, complete=False)


# --- thinking ---


@pytest.mark.parametrize("signed_in", [1, 3, 7])
async def test_thinking_goes_back_byte_for_byte(fake: Endpoint, server: AnthropicServer, signed_in: int) -> None:
    gateway = fake()
    thought = " So:\n\u2028 \u00fc\t"
    extra = {"signature_pieces": signed_in, "redacted": redacted(7)}
    server.plan(Reply(reasoning=thought, text="I look.\n\n", calls=CALLS, extra=extra))
    first = await hear(gateway, request(tools=(READ,)))
    state = first.done.message.provider_state
    assert state is not None and "So:" not in state.data.text and "a.txt" not in state.data.text, "kept once"
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    content = server.chats[1].body["messages"][1]["content"]
    assert content[:3] == [
        {"type": "thinking", "thinking": thought, "signature": sign(thought)},
        {"type": "redacted_thinking", "data": redacted(7)},
        {"type": "text", "text": "I look.\n\n"},
    ]
    assert f'"input":{RAW_A}' in server.chats[1].raw
    assert server.chats[1].body["thinking"]["type"] == "enabled"


async def test_thinking_goes_to_the_model_that_wrote_it_only(fake: Endpoint, server: AnthropicServer) -> None:
    gateway = fake()
    server.plan(Reply(reasoning="thought", text="said", calls=CALLS))
    first = await hear(gateway, request(tools=(READ,)))
    heard = await hear(gateway, request(tools=(READ,), messages=chat(first), model="fake-large"))
    body = server.chats[1].body
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
    # An answer whose calls are being answered began without thinking: the service takes none in this request.
    assert "thinking" not in body
    assert "without thinking" in heard.done.diagnostics[0]
    after = [*chat(first), AssistantMessage((TextPart("done"),)), user("and now?")]
    await hear(gateway, request(tools=(READ,), messages=after, model="fake-large"))
    assert server.chats[2].body["thinking"]["type"] == "enabled"


@pytest.mark.parametrize("damage", ["{", "[]", '{"wire": "anthropic"}', '{"wire":"anthropic","blocks":[],"digest":""}'])
async def test_state_that_does_not_fit_is_dropped_whole(fake: Endpoint, server: AnthropicServer, damage: str) -> None:
    gateway = fake()
    server.plan(Reply(reasoning="thought", text="said", calls=CALLS, extra={"redacted": redacted()}))
    message = (await hear(gateway, request(tools=(READ,)))).done.message
    assert message.provider_state is not None
    damaged = replace(message, provider_state=replace(message.provider_state, data=Content(damage)))
    await hear(gateway, request(tools=(READ,), messages=chat(damaged)))
    assert "thinking" not in server.chats[1].raw


@pytest.mark.parametrize("change", ["thinking", "text", "arguments", "order"])
async def test_one_changed_byte_drops_the_thinking(fake: Endpoint, server: AnthropicServer, change: str) -> None:
    gateway = fake()
    server.plan(Reply(reasoning="thought", text="said", calls=CALLS))
    message = (await hear(gateway, request(tools=(READ,)))).done.message
    thought, text, first, second = message.parts
    assert isinstance(first, ToolCallPart)
    parts = {
        "thinking": (ReasoningPart("thoughts"), text, first, second),
        "text": (thought, TextPart("said "), first, second),
        "arguments": (thought, text, replace(first, arguments=Content("{}")), second),
        "order": (text, thought, first, second),
    }[change]
    await hear(gateway, request(tools=(READ,), messages=chat(AssistantMessage(parts, message.provider_state))))
    assert "thinking" not in server.chats[1].raw


async def test_unsigned_thinking_is_shown_and_not_sent_back(fake: Endpoint, server: AnthropicServer) -> None:
    gateway = fake()
    server.plan(Reply(reasoning="thought", text="said", calls=CALLS, extra={"signature": ""}))
    first = await hear(gateway, request(tools=(READ,)))
    assert first.reasoning == "thought"
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    assert "thinking" not in server.chats[1].raw


# --- shapes ---


async def test_input_that_comes_with_its_beginning_stays_as_written(fake: Endpoint, server: AnthropicServer) -> None:
    block = f'{{"type": "tool_use", "id": "t1", "name": "read_file", "input" : {RAW_A}}}'
    start = f'data: {{"type":"content_block_start","index":0,"content_block":{block}}}\n\n'
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}}
    server.plan(Reply(events=[start, end]), Reply(calls=CALLS, extra={"input_at_start": True}))
    (call,) = (await hear(fake(), request(tools=(READ,)))).done.message.calls
    assert call.arguments.text == RAW_A
    assert len((await hear(fake(), request(tools=(READ,)))).done.message.calls) == 2


async def test_a_call_without_arguments_is_an_empty_object(fake: Endpoint, server: AnthropicServer) -> None:
    server.plan(Reply(calls=[{"name": "read_file", "arguments": ""}]))
    (call,) = (await hear(fake(), request(tools=(READ,)))).done.message.calls
    assert call.arguments.text == "{}"


async def test_blocks_nobody_asked_for_are_left_out_and_said(fake: Endpoint, server: AnthropicServer) -> None:
    odd = {"type": "content_block_start", "index": 9, "content_block": {"type": "server_tool_use", "name": "x"}}
    more = {"type": "content_block_delta", "index": 9, "delta": {"type": "input_json_delta", "partial_json": "{}"}}
    server.plan(Reply(events=[odd, more, *_events({"input_tokens": 1, "output_tokens": 1})]))
    done = (await hear(fake(), request())).done
    assert done.message.parts == (TextPart("whole"),)
    assert "'server_tool_use'" in done.diagnostics[0]


async def test_many_blocks_that_nobody_understands_are_a_few_notes_without_keys(make_gateway: Make) -> None:
    kinds = [KEY * 3, *(f"kind_{'abcdefghij'[number % 10]}{'xyz' * (number // 10)}" for number in range(100))]
    odd = [{"type": "content_block_start", "index": 9, "content_block": {"type": kind}} for kind in kinds]
    server = AnthropicServer().start()
    try:
        server.plan(Reply(events=[*odd, *_events({"input_tokens": 1, "output_tokens": 1})]))
        gateway = make_gateway(AnthropicProvider("fake", server.base_url, api_key="env:KEY"))
        done = (await hear(gateway, request())).done
    finally:
        server.close()
    assert done.message.text == "whole" and len(done.diagnostics) == MAX_NOTES
    assert KEY[:14] not in str(done)


@pytest.mark.parametrize(
    ("event", "what"),
    [
        ({"type": "content_block_start", "content_block": "text"}, "a content block as a JSON str"),
        ({"type": "content_block_delta", "delta": ["x"]}, "a delta as a JSON list"),
        ({"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta"}}, "never begun"),
        ({"type": "content_block_start", "content_block": {"type": "tool_use", "name": ["x"]}}, "the name of a tool"),
        ({"type": "message_start", "message": 5}, "a message as a JSON int"),
    ],
)
async def test_an_answer_that_nobody_can_read_is_refused_for_good(
    fake: Endpoint, server: AnthropicServer, event: dict[str, Any], what: str
) -> None:
    server.plan(Reply(events=[event, *_events({})]))
    with pytest.raises(ModelAnswerMalformed, match=what):
        await hear(fake(), request())


async def test_text_without_a_beginning_is_text(fake: Endpoint, server: AnthropicServer) -> None:
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ab"}}
    server.plan(Reply(events=[piece, piece, *_events({})[2:]]))
    assert (await hear(fake(), request())).done.message.text == "abab"


@pytest.mark.parametrize(
    ("kind", "error"),
    [("overloaded_error", ModelUnavailable), ("invalid_request_error", ModelRequestRejected), (5, ModelUnavailable)],
)
async def test_errors_in_the_stream_by_type(
    fake: Endpoint, server: AnthropicServer, kind: Any, error: type[Exception]
) -> None:
    event = {"type": "error", "error": {"type": kind, "message": "so it is"}}
    server.plan(Reply(events=[_events({})[0], event]))
    with pytest.raises(error, match="so it is"):
        await hear(fake(), request())


async def test_used_up_credit_does_not_pass(fake: Endpoint, server: AnthropicServer) -> None:
    body = {"type": "error", "error": {"type": "billing_error", "message": "no credit"}}
    server.plan(Reply(status=400, body=json.dumps(body)))
    with pytest.raises(ModelRequestRejected, match="no credit") as caught:
        await hear(fake(), request())
    assert "balance" in (caught.value.fix or "")


async def test_a_conversation_of_another_service_is_made_fit(fake: Endpoint, server: AnthropicServer) -> None:
    calls = (ToolCallPart("call.1", "read file", Content("")), ToolCallPart("call.1", "b", Content("[1]")))
    foreign = AssistantMessage((ReasoningPart("hm"), TextPart(" \n"), *calls))
    results = [ToolMessage("call.1", "read file", Content(""), is_error=True)]
    await hear(fake(), request(messages=[foreign, *results, user(" "), foreign, user("go\0 on")]))
    begin, asked, answered, again, last = server.chats[0].body["messages"]
    assert begin["role"] == "user" and begin["content"][0]["text"]
    ids = [block["id"] for message in (asked, again) for block in message["content"]]
    assert len(set(ids)) == 4
    assert answered["content"][0] == {"type": "tool_result", "tool_use_id": ids[0], "is_error": True}
    assert asked["content"][1]["input"] == {"malformed_arguments": "[1]"}
    assert last["content"][-1]["text"] == "go\ufffd on"


async def test_health(fake: Endpoint, server: AnthropicServer) -> None:
    server.key = KEY
    assert (await fake(api_key="env:KEY").check("fake")).ok
    assert not (await fake().check("fake")).ok
    wrong = await fake(api_key="env:KEY", default_model="fake-smal").check("fake")
    assert not wrong.ok and "fake-small" in (wrong.fix or "")
