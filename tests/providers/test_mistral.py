"""What is Mistral's own: ids of nine characters, thinking in chunks, the order of roles, and its refusals."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from milepost.domain.content import BlobRef, Content
from milepost.domain.errors import ModelAnswerMalformed, ModelIncomplete, ModelRequestRejected
from milepost.domain.messages import (
    AssistantMessage,
    FinishReason,
    ImagePart,
    ResponseFormat,
    Sampling,
    TextPart,
    ToolCallPart,
    UserMessage,
)
from milepost.domain.providers import MistralProfile, MistralProvider
from milepost.providers.gateway import Gateway
from tests.providers.conftest import KEY, READ, Make, hear, request, user
from tests.providers.test_conformance import CALL, CALLS, RAW_A, chat
from tests.support.mistral_server import MistralServer
from tests.support.validators.mistral import sign
from tests.support.wire_server import Reply

Endpoint = Callable[..., Gateway]
PLAIN = MistralProfile()
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
IMAGE = ImagePart(BlobRef("0" * 64, 8, "image/png"), "plan.png", PNG)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture
def server() -> Iterator[MistralServer]:
    made = MistralServer().start()
    yield made
    made.close()


@pytest.fixture
def fake(make_gateway: Make, server: MistralServer) -> Endpoint:
    def make(profile: MistralProfile = PLAIN, **changes: Any) -> Gateway:
        values = {"base_url": server.base_url, "default_model": "fake-small", "profile": profile, **changes}
        return make_gateway(MistralProvider("fake", **values))

    return make


async def test_everything_is_on_the_wire_and_nothing_else(fake: Endpoint, server: MistralServer) -> None:
    server.key = KEY
    gateway = fake(MistralProfile(extra_body={"prompt_mode": "reasoning"}), api_key="env:KEY")
    wanted = ResponseFormat(SCHEMA, "sum")
    sampling = Sampling(0.5, 0.9, 100, "high", stop=("END",), response_format=wanted)
    messages = [UserMessage(Content("look"), (IMAGE,))]
    await hear(gateway, request(tools=(READ,), sampling=sampling, messages=messages))
    (seen,) = server.chats
    function = {"name": "read_file", "description": "Read a file.", "parameters": READ.parameters}
    image = {"type": "image_url", "image_url": f"data:image/png;base64,{PNG}"}
    assert seen.path == "/v1/chat/completions"
    assert seen.body == {
        "model": "fake-small",
        "tools": [{"type": "function", "function": function}],
        "stream": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 100,
        "reasoning_effort": "high",
        "stop": ["END"],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True},
        },
        "prompt_mode": "reasoning",
        "messages": [
            {"role": "system", "content": "You are a test."},
            {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
        ],
    }
    expected = {"host", "accept", "content-type", "content-length", "user-agent", "accept-encoding", "authorization"}
    assert set(seen.headers) == expected


@pytest.mark.parametrize(
    ("profile", "sampling", "said"),
    [
        (MistralProfile(unsupported=frozenset({"reasoning_effort"})), Sampling(reasoning_effort="low"), "effort"),
        (MistralProfile(supports_tools=False), Sampling(), "no tools"),
        (MistralProfile(supports_images=False), Sampling(), "no images"),
        (MistralProfile(json_output="object"), Sampling(response_format=ResponseFormat(SCHEMA)), "no JSON schema"),
    ],
)
async def test_what_is_left_out_is_said(
    fake: Endpoint, server: MistralServer, profile: MistralProfile, sampling: Sampling, said: str
) -> None:
    messages = [UserMessage(Content("look"), (IMAGE,))]
    server.plan(Reply(text='{"a": 1}'))
    heard = await hear(fake(profile), request(sampling=sampling, tools=(READ,), messages=messages))
    assert [said in text for text in heard.done.diagnostics] == [True]
    assert "reasoning_effort" not in server.chats[0].body


@pytest.mark.parametrize("signed_in", [0, 1, 3])
async def test_thinking_goes_back_byte_for_byte_to_the_model_that_wrote_it(
    fake: Endpoint, server: MistralServer, signed_in: int
) -> None:
    gateway = fake()
    thought = " So:\n\u2028 \u00fc\t"
    server.plan(Reply(reasoning=thought, text="I look.\n\n", calls=CALLS, extra={"signature_pieces": signed_in}))
    first = await hear(gateway, request(tools=(READ,)))
    assert (first.reasoning, first.text) == (thought, "I look.\n\n")
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    await hear(gateway, request(tools=(READ,), messages=chat(first), model="fake-large"))
    await hear(fake(MistralProfile(return_thinking=False)), request(tools=(READ,), messages=chat(first)))
    same, other, never = (seen.body["messages"][2] for seen in server.chats[1:])
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": thought}], "closed": True}
    signature = {"signature": sign(thought)} if signed_in else {}
    assert same["content"] == [thinking | signature, {"type": "text", "text": "I look.\n\n"}]
    assert other["content"] == never["content"] == "I look.\n\n"
    assert same["tool_calls"] == other["tool_calls"]
    assert json.dumps(RAW_A)[1:-1] in server.chats[1].raw


async def test_ids_are_nine_characters_and_the_services_own_are_kept(fake: Endpoint, server: MistralServer) -> None:
    gateway = fake()
    server.plan(Reply(calls=[{**CALL[0], "id": "D681PevKs"}], extra={"whole_calls": True}))
    first = await hear(gateway, request(tools=(READ,)))
    foreign = AssistantMessage(tuple(ToolCallPart(f"toolu_{n}", "read_file", Content("{}")) for n in range(2)))
    await hear(gateway, request(tools=(READ,), messages=chat(first, foreign, first.done.message)))
    calls = [call["id"] for message in server.chats[1].body["messages"] for call in message.get("tool_calls", [])]
    assert calls[0] == "D681PevKs" and len(set(calls)) == 4
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", call_id) for call_id in calls)


async def test_the_user_never_follows_a_result(fake: Endpoint, server: MistralServer) -> None:
    stopped = AssistantMessage((ToolCallPart("a", "read_file", Content("{}")),))
    await hear(fake(), request(messages=[stopped, user("go on")]))
    assert [message["role"] for message in server.chats[0].body["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


async def test_arguments_sent_as_an_object_stay_as_written(fake: Endpoint, server: MistralServer) -> None:
    call = f'{{"id": "abcabcabc", "function": {{"name": "read_file", "arguments" : {RAW_A} }} }}'
    event = f'data: {{"choices": [ {{"index": 0, "delta": {{"tool_calls": [{call}]}}}}]}}\n\n'
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    server.plan(Reply(events=[event, end]), Reply(calls=CALLS, extra={"arguments_object": True}))
    (made,) = (await hear(fake(), request(tools=(READ,)))).done.message.calls
    assert (made.call_id, made.arguments.text) == ("abcabcabc", RAW_A)
    assert len((await hear(fake(), request(tools=(READ,)))).done.message.calls) == 2


@pytest.mark.parametrize(("word", "finish"), [("model_length", FinishReason.LENGTH), ("error", None)])
async def test_finish_reasons_of_its_own(
    fake: Endpoint, server: MistralServer, word: str, finish: FinishReason | None
) -> None:
    server.plan(Reply(text="x", finish=word))
    if finish is None:
        with pytest.raises(ModelIncomplete):
            await hear(fake(), request())
    else:
        assert (await hear(fake(), request())).done.finish is finish


@pytest.mark.parametrize(
    "body",
    [
        {"object": "error", "message": {"detail": [{"msg": "so it is"}]}, "type": "invalid", "code": None},
        {"detail": [{"loc": ["body"], "msg": "so it is", "type": "missing"}]},
    ],
)
async def test_refusals_in_their_words(fake: Endpoint, server: MistralServer, body: dict[str, Any]) -> None:
    server.plan(Reply(status=422, body=json.dumps(body)))
    with pytest.raises(ModelRequestRejected, match="so it is"):
        await hear(fake(), request())


@pytest.mark.parametrize(
    ("delta", "what"),
    [
        ({"content": ["x"]}, "a chunk of content as a JSON str"),
        ({"tool_calls": "x"}, "'tool_calls' as a JSON str"),
        ({"tool_calls": [{"function": {"name": []}}]}, "the name of a tool"),
        (["x"], "a delta as a JSON list"),
    ],
)
async def test_an_answer_that_nobody_can_read_is_refused_for_good(
    fake: Endpoint, server: MistralServer, delta: Any, what: str
) -> None:
    server.plan(Reply(events=[{"choices": [{"index": 0, "delta": delta}]}]))
    with pytest.raises(ModelAnswerMalformed, match=what):
        await hear(fake(), request())


async def test_chunks_nobody_asked_for_are_left_out_and_said(fake: Endpoint, server: MistralServer) -> None:
    content = [{"type": "reference", "reference_ids": [1]}, {"type": "text", "text": "x"}]
    end = {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": "stop"}]}
    server.plan(Reply(events=[{"choices": [{"index": 0, "delta": {"content": 5}}]}, end]))
    done = (await hear(fake(), request())).done
    assert done.message.parts == (TextPart("x"),)
    assert "no text" in done.diagnostics[0] and "'reference'" in done.diagnostics[1]


async def test_health_and_what_models_can(fake: Endpoint, server: MistralServer) -> None:
    server.key = KEY
    gateway = fake(api_key="env:KEY")
    assert (await gateway.check("fake")).ok
    listed = await (await gateway.provider("fake")).models()
    assert [(info.model_id, info.abilities) for info in listed or []] == [
        ("fake-small", ("tools",)),
        ("fake-large", ("tools",)),
    ]
