"""Tool calls as servers really stream them, and what goes back to the model afterwards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.domain.content import Content
from milepost.domain.errors import ModelAnswerTooLarge
from milepost.domain.messages import AssistantMessage, FinishReason, Sampling, ToolCallPart, ToolMessage
from milepost.domain.providers import EndpointProfile, ThinkingReturn
from milepost.providers.calls import CallAssembler
from milepost.providers.gateway import Gateway
from tests.providers.conftest import READ, Heard, hear, request, user
from tests.support.openai_server import OpenAIServer, Reply

Endpoint = Callable[..., Gateway]

# Spaces, order and escapes that a JSON library would write otherwise.
RAW_A = '{"path": "a.txt",  "n":1.0, "s":"\\u00fc"}'
RAW_B = '{ "path":"b.txt" }'
CALLS = [{"name": "read_file", "arguments": RAW_A}, {"name": "read_file", "arguments": RAW_B}]


def arguments(heard: Heard) -> list[str]:
    return [call.arguments.text for call in heard.done.message.calls]


@pytest.mark.parametrize("index", ["normal", "none", "zero"])
@pytest.mark.parametrize("ids", ["normal", "none", "same", "every_chunk"])
@pytest.mark.parametrize("name_in_each", [False, True])
async def test_calls_are_told_apart_however_they_are_numbered(
    endpoint: Endpoint, model_server: OpenAIServer, index: str, ids: str, name_in_each: bool
) -> None:
    model_server.plan(Reply(text="I look.", calls=CALLS, index=index, ids=ids, name_in_each=name_in_each))
    heard = await hear(endpoint(), request(tools=(READ,)))
    assert arguments(heard) == [RAW_A, RAW_B]
    assert [call.tool for call in heard.done.message.calls] == ["read_file", "read_file"]
    assert len({call.call_id for call in heard.done.message.calls}) == 2
    assert heard.done.finish is FinishReason.TOOL_CALLS
    assert heard.text == "I look."


@pytest.mark.parametrize(
    ("index", "ids"), [("normal", "normal"), ("normal", "none"), ("normal", "same"), ("none", "every_chunk")]
)
async def test_interleaved_calls(endpoint: Endpoint, model_server: OpenAIServer, index: str, ids: str) -> None:
    model_server.plan(Reply(calls=CALLS, index=index, ids=ids, interleaved=True))
    assert arguments(await hear(endpoint(), request(tools=(READ,)))) == [RAW_A, RAW_B]


@pytest.mark.parametrize("index", ["normal", "none", "zero"])
async def test_a_call_without_arguments_is_a_call(endpoint: Endpoint, model_server: OpenAIServer, index: str) -> None:
    calls = [{"name": "read_file", "arguments": RAW_A}, {"name": "read_file", "arguments": ""}]
    model_server.plan(Reply(calls=calls, index=index, ids="none"))
    assert arguments(await hear(endpoint(), request(tools=(READ,)))) == [RAW_A, ""]


async def test_ids_that_change_with_each_piece(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(calls=CALLS, ids="churn"))
    assert arguments(await hear(endpoint(), request(tools=(READ,)))) == [RAW_A, RAW_B]


async def test_made_ids_are_the_same_in_the_next_attempt_and_recorded(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    gateway = endpoint()
    model_server.plan(*(Reply(calls=CALLS, ids="none") for _ in range(3)))
    first = await hear(gateway, request(tools=(READ,)))
    again = await hear(gateway, request(tools=(READ,), attempt=2))
    other = await hear(gateway, request(tools=(READ,), idempotency_key="key-2"))
    ids = [call.call_id for call in first.done.message.calls]
    assert [call.call_id for call in again.done.message.calls] == ids
    assert not set(ids) & {call.call_id for call in other.done.message.calls}
    assert "2 tool call(s) came without an id" in first.done.diagnostics[0]


async def test_provider_ids_are_kept(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(calls=[{"name": "read_file", "arguments": "{}", "id": "functions.read_file:0"}]))
    heard = await hear(endpoint(), request(tools=(READ,)))
    assert [call.call_id for call in heard.done.message.calls] == ["functions.read_file:0"]
    assert heard.done.diagnostics == ()


@pytest.mark.parametrize(
    "raw",
    ['{"path": "a', json.dumps('{"path": "a"}'), "", "{}", "[1]", "null", '{"a": "\\ud800"}', '{"a":1}{"b":2'],
)
async def test_arguments_stay_as_streamed(endpoint: Endpoint, model_server: OpenAIServer, raw: str) -> None:
    model_server.plan(Reply(calls=[{"name": "read_file", "arguments": raw}], piece=max(len(raw), 1)))
    heard = await hear(endpoint(), request(tools=(READ,)))
    assert arguments(heard) == [raw]


async def test_arguments_sent_as_an_object_become_its_text(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(calls=[{"name": "read_file", "arguments": {"path": "a"}}]))
    assert json.loads(arguments(await hear(endpoint(), request(tools=(READ,))))[0]) == {"path": "a"}


async def test_a_name_that_comes_late(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    def piece(**delta: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **delta}]}}]}

    events = [
        piece(function={"arguments": '{"path"'}),
        piece(id="call_9", function={"name": "read_file", "arguments": ': "a"}'}),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]
    model_server.plan(Reply(events=list(events)))
    (call,) = (await hear(endpoint(), request(tools=(READ,)))).done.message.calls
    assert (call.tool, call.arguments.text) == ("read_file", '{"path": "a"}')


async def test_stop_with_calls_means_calls(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(calls=CALLS, finish="stop"))
    assert (await hear(endpoint(), request(tools=(READ,)))).done.finish is FinishReason.TOOL_CALLS


@pytest.mark.parametrize("finish", ["length", "tool_calls"])
async def test_calls_cut_by_the_token_limit_say_length(
    endpoint: Endpoint, model_server: OpenAIServer, finish: str
) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 20}
    model_server.plan(Reply(calls=[{"name": "read_file", "arguments": '{"path": "a'}], finish=finish, usage=usage))
    heard = await hear(endpoint(), request(tools=(READ,), sampling=Sampling(max_tokens=20)))
    assert heard.done.finish is FinishReason.LENGTH


async def test_malformed_arguments_below_the_limit_are_no_length_cut(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 19}
    model_server.plan(Reply(calls=[{"name": "read_file", "arguments": '{"path": "a'}], usage=usage))
    heard = await hear(endpoint(), request(tools=(READ,), sampling=Sampling(max_tokens=20)))
    assert heard.done.finish is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"name": "read_file", "arguments": {"path": "a"}}', True),
        ('```json\n{"tool": "read_file"}\n```', True),
        ('<tool_call>\n{"name": "read_file", "arguments": {}}\n</tool_call>', True),
        ('{"function": {"name": "read_file"}}', True),
        ('{"name": "another"}', False),
        ('I would call {"name": "read_file"}.', False),
    ],
)
async def test_a_call_written_as_text_stays_text_and_is_said(
    endpoint: Endpoint, model_server: OpenAIServer, text: str, found: bool
) -> None:
    model_server.plan(Reply(text=text))
    done = (await hear(endpoint(), request(tools=(READ,)))).done
    assert (done.message.text, done.message.calls) == (text, ())
    assert any("as text" in line for line in done.diagnostics) is found


async def test_calls_without_end_are_bounded(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(calls=[{"name": "read_file", "arguments": "{}"}] * 2000))
    with pytest.raises(ModelAnswerTooLarge, match="1024 tool calls"):
        await hear(endpoint(), request(tools=(READ,)))


@pytest.mark.parametrize("sent", ["x" * 10_000, "a\nb", 7])
async def test_an_id_that_is_none_is_replaced(endpoint: Endpoint, model_server: OpenAIServer, sent: object) -> None:
    model_server.plan(Reply(calls=[{"name": "read_file", "arguments": "{}", "id": sent}]))
    (call,) = (await hear(endpoint(), request(tools=(READ,)))).done.message.calls
    assert call.call_id.startswith("call_") and len(call.call_id) == 29


def chat(*answers: Heard | AssistantMessage) -> list[Any]:
    """A conversation in which each answer is followed by its results."""
    messages: list[Any] = [user("hello")]
    for answer in answers:
        message = answer.done.message if isinstance(answer, Heard) else answer
        messages.append(message)
        messages.extend(ToolMessage(call.call_id, call.tool, Content("result")) for call in message.calls)
    return messages


async def test_arguments_go_back_byte_for_byte(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    gateway = endpoint()
    model_server.plan(Reply(text="I look.\n\n", calls=CALLS))
    first = await hear(gateway, request(tools=(READ,)))
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    sent = model_server.chats[1].body["messages"]
    assert sent[2]["content"] == "I look.\n\n"
    assert [call["function"]["arguments"] for call in sent[2]["tool_calls"]] == [RAW_A, RAW_B]
    assert [message["tool_call_id"] for message in sent[3:]] == [call["id"] for call in sent[2]["tool_calls"]]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
async def test_reasoning_goes_back_in_its_field_to_the_model_that_wrote_it_only(
    endpoint: Endpoint, model_server: OpenAIServer, field: str
) -> None:
    gateway = endpoint()
    model_server.plan(Reply(reasoning=" think\n ing ", reasoning_field=field, text="hm", calls=CALLS))
    first = await hear(gateway, request(tools=(READ,)))
    state = first.done.message.provider_state
    assert state is not None and (state.provider, state.model) == ("fake", "fake-small")
    assert "think\\n ing" not in state.data.text and "a.txt" not in state.data.text, "texts are kept once"
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    await hear(gateway, request(tools=(READ,), messages=chat(first), model="fake-large"))
    same, other = (seen.body["messages"][2] for seen in model_server.chats[1:])
    assert same.pop(field) == " think\n ing "
    assert same == other


async def test_tagged_reasoning_goes_back_byte_for_byte(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    gateway = endpoint()
    pieces = ["<think>", "\na plan\n", "</think>", "\n\nanswer"]
    events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    model_server.plan(Reply(events=[*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]))
    first = await hear(gateway, request())
    await hear(gateway, request(messages=[*chat(first), user("go on")]))
    assert model_server.chats[1].body["messages"][2]["content"] == "".join(pieces)


@pytest.mark.parametrize("how", [ThinkingReturn.NEVER, ThinkingReturn.TAGS, ThinkingReturn.FIELD])
async def test_how_reasoning_goes_back_is_configured(
    endpoint: Endpoint, model_server: OpenAIServer, how: ThinkingReturn
) -> None:
    gateway = endpoint(profile=EndpointProfile(thinking_return=how))
    model_server.plan(Reply(reasoning="thought", text="said"))
    first = await hear(gateway, request())
    await hear(gateway, request(messages=[*chat(first), user("go on")]))
    sent = model_server.chats[1].body["messages"][2]
    expected = {
        ThinkingReturn.NEVER: {"content": "said"},
        ThinkingReturn.TAGS: {"content": "<think>thought</think>said"},
        ThinkingReturn.FIELD: {"content": "said", "reasoning_content": "thought"},
    }
    assert sent == {"role": "assistant", **expected[how]}
    assert (first.done.message.provider_state is None) == (how is ThinkingReturn.NEVER)


async def test_a_signature_in_a_vendor_extension_goes_back_with_its_call(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    extra = {"google": {"thought_signature": "c2lnbmF0dXJl=="}}
    call = {"index": 0, "id": "call_1", "function": {"name": "read_file", "arguments": RAW_A}, "extra_content": extra}
    events = [
        {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]
    gateway = endpoint()
    model_server.plan(Reply(events=list(events)))
    first = await hear(gateway, request(tools=(READ,)))
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    (sent,) = model_server.chats[1].body["messages"][2]["tool_calls"]
    assert sent["extra_content"] == extra
    assert sent["function"]["arguments"] == RAW_A


@pytest.mark.parametrize("damage", ["{", "[]", '{"kind": "request", "parts": []}', '{"kind": "response", "parts": []}'])
async def test_state_that_does_not_fit_is_dropped_whole(
    endpoint: Endpoint, model_server: OpenAIServer, damage: str
) -> None:
    gateway = endpoint()
    model_server.plan(Reply(reasoning="thought", text="said", calls=CALLS))
    message = (await hear(gateway, request(tools=(READ,)))).done.message
    assert message.provider_state is not None
    damaged = replace(message, provider_state=replace(message.provider_state, data=Content(damage)))
    await hear(gateway, request(tools=(READ,), messages=chat(damaged)))
    sent = model_server.chats[1].body["messages"][2]
    assert sent["content"] == "said" and "reasoning_content" not in sent


async def test_the_prefix_is_byte_stable_over_a_conversation(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    gateway = endpoint()
    messages: list[Any] = [user("hello")]
    for turn in range(12):
        model_server.plan(Reply(reasoning=f"t{turn}", text=f"a{turn}", calls=CALLS if turn % 3 else [], ids="none"))
        heard = await hear(gateway, request(tools=(READ,), messages=messages, idempotency_key=f"k{turn}"))
        messages = [*messages, *chat(heard)[1:]]
        if not turn % 3:
            messages.append(user(f"question {turn}"))
    bodies = [json.dumps(seen.body["messages"])[:-1] for seen in model_server.chats]
    assert len(bodies) == 12
    for shorter, longer in itertools.pairwise(bodies):
        assert longer.startswith(shorter)
    assert len({json.dumps(seen.body["tools"]) for seen in model_server.chats}) == 1


def call_message(raw: str, tool: str = "read_file", call_id: str = "call_1") -> AssistantMessage:
    return AssistantMessage((ToolCallPart(call_id, tool, Content(raw)),))


@pytest.mark.parametrize(
    ("raw", "sent"),
    [
        (RAW_A, RAW_A),
        ("", "{}"),
        (json.dumps(RAW_B), RAW_B),
        ('{"path": "a', '{"malformed_arguments": "{\\"path\\": \\"a"}'),
        ("[1]", '{"malformed_arguments": "[1]"}'),
    ],
)
async def test_what_a_server_could_not_parse_goes_back_wrapped(
    endpoint: Endpoint, model_server: OpenAIServer, raw: str, sent: str
) -> None:
    await hear(endpoint(), request(messages=chat(call_message(raw))))
    (call,) = model_server.chats[0].body["messages"][2]["tool_calls"]
    assert call["function"]["arguments"] == sent


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["read_file", "bash"]),
            st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=8), max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from(["index", "id", "both"]),
)
def test_any_calls_come_out_as_they_went_in(
    calls: list[tuple[str, dict[str, Any]]], size: int, interleaved: bool, by: str
) -> None:
    raws = [json.dumps(value) for _, value in calls]
    streams = []
    for number, ((tool, _), raw) in enumerate(zip(calls, raws, strict=True)):
        index = number if by != "id" else None
        own = f"call_{number}" if by != "index" else None
        pieces = [raw[start : start + size] for start in range(0, len(raw), size)]
        first = [(index, own, tool, "")]
        later_id = own if by == "id" else None
        streams.append(first + [(index, later_id, None, piece) for piece in pieces])
    order = (
        [piece for row in itertools.zip_longest(*streams) for piece in row if piece is not None]
        if interleaved
        else [piece for stream in streams for piece in stream]
    )
    assembler = CallAssembler("key")
    for piece in order:
        assembler.add(*piece)
    assert [(call.tool, call.arguments) for call in assembler.calls] == [
        (tool, raw) for (tool, _), raw in zip(calls, raws, strict=True)
    ]
