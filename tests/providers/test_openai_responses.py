"""What is OpenAI's own: responses with encrypted reasoning, and chat completions by setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from milepost.domain.content import BlobRef, Content
from milepost.domain.errors import ModelRateLimited, ModelRequestRejected, ModelUnavailable
from milepost.domain.messages import FinishReason, ImagePart, ResponseFormat, Sampling, UserMessage
from milepost.domain.providers import OpenAIProfile, OpenAIProvider
from milepost.providers.gateway import Gateway
from tests.providers.conftest import READ, Make, hear, request, user
from tests.providers.test_conformance import CALLS, chat
from tests.support.openai_server import OpenAIServer
from tests.support.responses_server import ResponsesServer
from tests.support.wire_server import Reply

Endpoint = Callable[..., Gateway]


@pytest.fixture
def server() -> Iterator[ResponsesServer]:
    made = ResponsesServer().start()
    yield made
    made.close()


@pytest.fixture
def openai(make_gateway: Make, server: ResponsesServer) -> Endpoint:
    def make(**changes: Any) -> Gateway:
        return make_gateway(OpenAIProvider(**{"name": "fake", "base_url": server.base_url, **changes}))

    return make


async def test_the_request_is_stateless_and_asks_for_encrypted_reasoning(
    openai: Endpoint, server: ResponsesServer
) -> None:
    sampling = Sampling(temperature=0.5, max_tokens=5, reasoning_effort="low", stop=("END",))
    profile = OpenAIProfile(reasoning_summary="auto", extra_body={"service_tier": "flex"})
    heard = await hear(openai(profile=profile), request(tools=(READ,), sampling=sampling))
    assert server.chats[0].body == {
        "model": "fake-small",
        "stream": True,
        "store": False,
        "instructions": "You are a test.",
        "tools": [
            {
                "type": "function",
                "name": "read_file",
                "description": "Read a file.",
                "parameters": READ.parameters,
                "strict": False,
            }
        ],
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"},
        "temperature": 0.5,
        "max_output_tokens": 16,
        "service_tier": "flex",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
    }
    said = " ".join(heard.done.diagnostics)
    assert "'stop'" in said and "below 16" in said


async def test_a_model_that_does_not_reason_is_not_asked_to(openai: Endpoint, server: ResponsesServer) -> None:
    gateway = openai(model_profiles={"fake-small": OpenAIProfile(reasoning=False)})
    heard = await hear(gateway, request(sampling=Sampling(reasoning_effort="low")))
    assert not {"include", "reasoning"} & set(server.chats[0].body)
    assert "'reasoning_effort'" in heard.done.diagnostics[0]


async def test_images_and_formats_go_out(openai: Endpoint, server: ResponsesServer) -> None:
    image = ImagePart(BlobRef("0" * 64, 4, "image/png"), "a.png", "iVBORw==")
    schema = {"type": "object", "properties": {}}
    sampling = Sampling(response_format=ResponseFormat(schema, "shape"))
    await hear(openai(), request(messages=[UserMessage(Content("look"), (image,))], sampling=sampling))
    await hear(openai(), request(sampling=Sampling(response_format=ResponseFormat())))
    first, second = (seen.body for seen in server.chats)
    assert first["input"][0]["content"][1]["image_url"] == "data:image/png;base64,iVBORw=="
    assert first["text"] == {"format": {"type": "json_schema", "name": "shape", "schema": schema, "strict": True}}
    assert second["text"] == {"format": {"type": "json_object"}}


@pytest.mark.parametrize("extra", [{}, {"summary_parts": 3}, {"silent": True}, {"phase": "commentary"}])
async def test_reasoning_goes_back_as_the_very_item_it_came_as(
    openai: Endpoint, server: ResponsesServer, extra: dict[str, Any]
) -> None:
    gateway = openai()
    # The fake's encrypted content proves id and summary: a changed byte is refused.
    server.plan(Reply(reasoning="First I think, then I look.", text="I look.", calls=CALLS, extra=extra))
    first = await hear(gateway, request(tools=(READ,)))
    assert first.text == "I look." and first.reasoning.replace("\n\n", "") == "First I think, then I look."
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    sent = server.chats[1].body["input"]
    kinds = [item["type"] for item in sent]
    assert kinds == ["message", "reasoning", "message", *["function_call"] * 2, *["function_call_output"] * 2]
    assert sent[1]["encrypted_content"].startswith("fake-enc.")
    assert [item["id"] for item in sent[2:5]] == ["msg_fake", "fc_0", "fc_1"]
    assert sent[2].get("phase") == extra.get("phase")
    assert [item["arguments"] for item in sent[3:5]] == [call["arguments"] for call in CALLS]


async def test_reasoning_that_cannot_go_back_is_dropped_whole(openai: Endpoint, server: ResponsesServer) -> None:
    gateway = openai()
    server.plan(Reply(reasoning="hm", text="I look.", calls=CALLS))
    sealed = await hear(gateway, request(tools=(READ,)))
    server.plan(Reply(reasoning="hm", text="I look.", calls=CALLS, extra={"encrypted": ""}))
    bare = await hear(gateway, request(tools=(READ,)))
    message = sealed.done.message
    assert message.provider_state is not None and bare.done.message.provider_state is None
    changed = replace(message, parts=(message.parts[0], replace(message.parts[1], text="other"), *message.parts[2:]))
    renamed = replace(message, parts=(*message.parts[:2], replace(message.parts[2], call_id="a b\n"), message.parts[3]))
    for answer, model in (
        (sealed, "fake-large"),
        (bare, "fake-small"),
        (changed, "fake-small"),
        (renamed, "fake-small"),
    ):
        server.requests.clear()
        await hear(gateway, request(tools=(READ,), messages=chat(answer), model=model))
        sent = server.chats[0].body["input"]
        assert "reasoning" not in [item["type"] for item in sent]
        assert not any("id" in item for item in sent), "ids without their reasoning are refused"


async def test_reasoning_with_nothing_after_it_is_dropped(openai: Endpoint, server: ResponsesServer) -> None:
    gateway = openai()
    server.plan(Reply(reasoning="only a thought", text=" "))
    first = await hear(gateway, request())
    await hear(gateway, request(messages=[*chat(first), user("go on")]))
    assert [item["type"] for item in server.chats[1].body["input"]] == ["message"]


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, ModelRateLimited),
        ({"type": "error", "error": {"type": "server_error", "message": "slow"}}, ModelUnavailable),
        ({"type": "response.failed", "response": {"error": {"code": "insufficient_quota"}}}, ModelRequestRejected),
        ({"type": "response.failed", "response": {"error": {"code": "context_length_exceeded"}}}, ModelRequestRejected),
        ({"type": "response.failed", "response": {}}, ModelUnavailable),
    ],
)
async def test_errors_in_a_stream_by_their_codes(
    openai: Endpoint, server: ResponsesServer, event: dict[str, Any], kind: type[Exception]
) -> None:
    server.plan(Reply(events=[event]))
    with pytest.raises(kind):
        await hear(openai(), request())


async def test_an_item_of_another_kind_is_said_and_left_out(openai: Endpoint, server: ResponsesServer) -> None:
    item = {"id": "ws_1", "type": "web_search_call"}
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"status": "completed", "model": "m"}},
    ]
    server.plan(Reply(events=list(events)))
    done = (await hear(openai(), request())).done
    assert done.finish is FinishReason.STOP and done.message.parts == ()
    assert any("web_search_call" in line for line in done.diagnostics)


async def test_what_comes_with_the_last_event_only_is_the_answer(openai: Endpoint, server: ResponsesServer) -> None:
    output = [
        {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "read_file", "arguments": '{"path":"a"}'},
    ]
    ended = {"status": "completed", "output": output, "usage": {"input_tokens": 1, "output_tokens": 2}}
    server.plan(Reply(events=[{"type": "response.completed", "response": ended}]))
    heard = await hear(openai(), request(tools=(READ,)))
    assert heard.text == heard.done.message.text == "I look."
    assert [(call.call_id, call.arguments.text) for call in heard.done.message.calls] == [("c", '{"path":"a"}')]


async def test_used_up_credit_is_not_a_rate_limit(openai: Endpoint, server: ResponsesServer) -> None:
    server.plan(Reply(status=429, body='{"error": {"message": "no credit left", "code": "insufficient_quota"}}'))
    with pytest.raises(ModelRequestRejected, match="no credit left"):
        await hear(openai(), request())


async def test_chat_completions_by_setting(make_gateway: Make, model_server: OpenAIServer) -> None:
    gateway = make_gateway(OpenAIProvider("fake", model_server.base_url, api="chat"))
    await hear(gateway, request(sampling=Sampling(max_tokens=50)))
    assert model_server.chats[0].body["max_completion_tokens"] == 50
