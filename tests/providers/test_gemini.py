"""What is the Gemini API's own: signatures on parts, calls without ids, usage and reasons in its words."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from milepost.domain.content import BlobRef, Content
from milepost.domain.errors import (
    ModelAnswerMalformed,
    ModelError,
    ModelIncomplete,
    ModelRateLimited,
    ModelUnauthorized,
    ModelUnavailable,
)
from milepost.domain.messages import (
    AssistantMessage,
    FinishReason,
    ImagePart,
    ResponseFormat,
    Sampling,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from milepost.domain.providers import GeminiProfile, GeminiProvider
from milepost.domain.usage import Usage
from milepost.providers.gateway import Gateway
from milepost.providers.gemini.usage import usage_of
from tests.providers.conftest import KEY, READ, Make, hear, request, user
from tests.providers.test_conformance import CALL, CALLS, RAW_A, chat
from tests.support.gemini_server import GeminiServer
from tests.support.validators.gemini import PLACEHOLDER, sign
from tests.support.wire_server import Reply

Endpoint = Callable[..., Gateway]
THINKS = GeminiProfile(thinking="budget")
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
IMAGE = ImagePart(BlobRef("0" * 64, 8, "image/png"), "plan.png", PNG)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture
def server() -> Iterator[GeminiServer]:
    made = GeminiServer().start()
    yield made
    made.close()


@pytest.fixture
def fake(make_gateway: Make, server: GeminiServer) -> Endpoint:
    def make(profile: GeminiProfile = THINKS, **changes: Any) -> Gateway:
        values = {"base_url": server.base_url, "default_model": "fake-small", "profile": profile, **changes}
        return make_gateway(GeminiProvider("fake", **values))

    return make


async def test_everything_is_on_the_wire_and_nothing_else(fake: Endpoint, server: GeminiServer) -> None:
    server.key = KEY
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    gateway = fake(GeminiProfile(thinking="level", extra_body={"safetySettings": safety}), api_key="env:KEY")
    wanted = ResponseFormat(SCHEMA)
    sampling = Sampling(0.5, 0.9, 100, "low", stop=("END",), response_format=wanted)
    messages = [UserMessage(Content("look"), (IMAGE,))]
    await hear(gateway, request(tools=(READ,), sampling=sampling, messages=messages))
    (seen,) = server.chats
    assert seen.path == "/v1beta/models/fake-small:streamGenerateContent?alt=sse"
    declared = {"name": "read_file", "description": "Read a file.", "parametersJsonSchema": READ.parameters}
    assert seen.body == {
        "systemInstruction": {"parts": [{"text": "You are a test."}]},
        "tools": [{"functionDeclarations": [declared]}],
        "generationConfig": {
            "temperature": 0.5,
            "topP": 0.9,
            "maxOutputTokens": 100,
            "stopSequences": ["END"],
            "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
            "responseMimeType": "application/json",
            "responseJsonSchema": SCHEMA,
        },
        "safetySettings": safety,
        "contents": [
            {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": PNG}}, {"text": "look"}]}
        ],
    }
    expected = {"host", "accept", "content-type", "content-length", "user-agent", "accept-encoding", "x-goog-api-key"}
    assert set(seen.headers) == expected


@pytest.mark.parametrize(
    ("profile", "sampling", "sent", "said"),
    [
        (GeminiProfile(), Sampling(reasoning_effort="low"), None, "'reasoning_effort'"),
        (THINKS, Sampling(), {"includeThoughts": True, "thinkingBudget": -1}, None),
        (THINKS, Sampling(reasoning_effort="none"), {"includeThoughts": False, "thinkingBudget": 0}, None),
        (THINKS, Sampling(reasoning_effort="?"), {"includeThoughts": True, "thinkingBudget": -1}, "unknown"),
        (GeminiProfile(thinking="level"), Sampling(), {"includeThoughts": True}, None),
        (GeminiProfile(unsupported=frozenset({"stop"})), Sampling(stop=("x",)), None, "'stop'"),
        (GeminiProfile(supports_images=False), Sampling(), None, "no images"),
    ],
)
async def test_settings_by_profile(
    fake: Endpoint,
    server: GeminiServer,
    profile: GeminiProfile,
    sampling: Sampling,
    sent: dict[str, Any] | None,
    said: str | None,
) -> None:
    heard = await hear(fake(profile), request(sampling=sampling, messages=[UserMessage(Content("look"), (IMAGE,))]))
    assert server.chats[0].body.get("generationConfig", {}).get("thinkingConfig") == sent
    assert (said or "") in " ".join(heard.done.diagnostics)
    assert bool(heard.done.diagnostics) == (said is not None)


async def test_a_model_may_be_a_path(fake: Endpoint, server: GeminiServer) -> None:
    await hear(fake(), request(model="tunedModels/my model"))
    assert server.requests[0].path == "/v1beta/tunedModels/my%20model:streamGenerateContent?alt=sse"


# --- signatures ---


@pytest.mark.parametrize("where", ["call", "each", "end", "none"])
async def test_signatures_go_back_on_the_parts_they_came_on(fake: Endpoint, server: GeminiServer, where: str) -> None:
    gateway = fake()
    server.plan(Reply(reasoning="th", text="te", calls=CALLS, extra={"signature_at": where}, ids="none"))
    first = await hear(gateway, request(tools=(READ,)))
    assert (first.reasoning, first.text) == ("th", "te")
    later = AssistantMessage((TextPart("done"),))
    await hear(gateway, request(tools=(READ,), messages=[*chat(first), later, user("and now?")]))
    parts = server.chats[1].body["contents"][1]["parts"]
    calls = [{"functionCall": {"name": "read_file", "args": json.loads(call["arguments"])}} for call in CALLS]
    numbered = [{"thoughtSignature": sign(str(number))} for number in range(4)]
    expected: dict[str, list[dict[str, Any]]] = {
        "call": [{"text": "te"}, calls[0] | numbered[2], calls[1]],
        "each": [
            {"text": "th", "thought": True} | numbered[0],
            {"text": "te"} | numbered[1],
            calls[0] | numbered[2],
            calls[1] | numbered[3],
        ],
        "end": [{"text": "te"}, *calls, {"text": "", "thoughtSignature": sign("end")}],
        "none": [{"text": "te"}, *calls],
    }
    assert parts == expected[where]
    assert f'"args":{RAW_A}' in server.chats[1].raw


async def test_what_was_signed_is_not_joined_with_what_was_not(fake: Endpoint, server: GeminiServer) -> None:
    def event(*parts: dict[str, Any], **candidate: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"parts": list(parts)}, **candidate}]}

    signed = {"text": "b", "thoughtSignature": sign("b")}
    alone = {"text": "", "thought": True, "thoughtSignature": sign("alone")}
    end = event({"text": "d"}, {"text": "e"}, finishReason="STOP")
    server.plan(Reply(events=[event({"text": "a"}), event(signed), event({"text": "c"}, alone), end]))
    gateway = fake()
    first = await hear(gateway, request())
    assert first.done.message.text == "abcde"
    await hear(gateway, request(messages=[*chat(first), user("go on")]))
    parts = server.chats[1].body["contents"][1]["parts"]
    assert parts == [{"text": "a"}, signed, {"text": "c"}, alone, {"text": "de"}]


async def test_ids_go_back_where_the_service_gave_them(fake: Endpoint, server: GeminiServer) -> None:
    gateway = fake()
    server.plan(Reply(calls=CALLS, ids="same"))
    first = await hear(gateway, request(tools=(READ,)))
    assert len({call.call_id for call in first.done.message.calls}) == 2
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    _, called, answered = server.chats[1].body["contents"]
    assert [part["functionCall"]["id"] for part in called["parts"]] == ["same", "same"]
    assert [part["functionResponse"]["id"] for part in answered["parts"]] == ["same", "same"]


@pytest.mark.parametrize("marks", [True, False])
async def test_calls_of_another_model_are_marked(fake: Endpoint, server: GeminiServer, marks: bool) -> None:
    calls = [ToolCallPart(f"call_{number}", "1st.tool", Content("{}")) for number in range(2)]
    messages: list[Any] = [user("a"), AssistantMessage((TextPart("t"), *calls)), user("b")]
    if marks:
        messages.insert(2, ToolMessage("call_1", "1st.tool", Content("bad"), is_error=True))
    await hear(fake(GeminiProfile(placeholder_signatures=marks)), request(messages=messages))
    _, asked, answered, last = server.chats[0].body["contents"]
    call = {"functionCall": {"name": "_st_tool", "args": {}}}
    marked = {**call, "thoughtSignature": PLACEHOLDER} if marks else call
    assert asked["parts"] == [{"text": "t"}, marked, call]
    assert [part["functionResponse"]["response"] for part in answered["parts"]] == [
        {"error": "cancelled"},
        {"error": "bad" if marks else "cancelled"},
    ]
    assert last["parts"] == [{"text": "b"}]


# --- shapes ---


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({"promptTokenCount": 9, "candidatesTokenCount": 3, "totalTokenCount": 12}, Usage(9, 0, 3)),
        (
            {"promptTokenCount": 9, "cachedContentTokenCount": 4, "thoughtsTokenCount": 5, "totalTokenCount": 14},
            Usage(5, 4, 0, 5),
        ),
        (  # thoughts within the candidates
            {"promptTokenCount": 9, "candidatesTokenCount": 8, "thoughtsTokenCount": 5, "totalTokenCount": 17},
            Usage(9, 0, 3, 5),
        ),
        (
            {
                "promptTokenCount": 9,
                "candidatesTokenCount": 1,
                "toolUsePromptTokenCount": 7,
                "totalTokenCount": 17,
            },
            Usage(16, 0, 1),
        ),
        ({"promptTokenCount": 9}, Usage(9, complete=False)),
        ({"promptTokenCount": float("inf"), "totalTokenCount": 3}, Usage(complete=False)),
        ({"promptTokenCount": 1, "cachedContentTokenCount": 4, "totalTokenCount": 1}, Usage(0, 1, complete=False)),
    ],
)
def test_usage(reported: dict[str, Any], expected: Usage) -> None:
    assert usage_of(reported) == expected


async def test_a_blocked_prompt_is_no_answer(fake: Endpoint, server: GeminiServer) -> None:
    blocked = {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 4, "totalTokenCount": 4},
    }
    server.plan(Reply(events=[blocked]))
    done = (await hear(fake(), request())).done
    assert (done.finish, done.usage) == (FinishReason.CONTENT_FILTER, Usage(4))
    assert "PROHIBITED_CONTENT" in done.diagnostics[0]


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
async def test_a_call_that_was_not_passed_on_is_no_answer(fake: Endpoint, server: GeminiServer, reason: str) -> None:
    server.plan(Reply(text="I look", finish=reason))
    with pytest.raises(ModelIncomplete, match=reason):
        await hear(fake(), request(tools=(READ,)))


async def test_an_unspecified_reason_is_none(fake: Endpoint, server: GeminiServer) -> None:
    server.plan(Reply(text="I look", finish="FINISH_REASON_UNSPECIFIED"))
    with pytest.raises(ModelIncomplete):
        await hear(fake(), request())


@pytest.mark.parametrize(
    ("status", "error", "kind", "after"),
    [
        (400, {"details": [{"@type": "x", "reason": "API_KEY_INVALID"}]}, ModelUnauthorized, None),
        (429, {"details": [{"@type": "x", "retryDelay": "34.5s"}]}, ModelRateLimited, 34.5),
        (429, {"details": [{"retryDelay": "soon"}, 5]}, ModelRateLimited, None),
        (503, {"details": "none"}, ModelUnavailable, None),
    ],
)
async def test_refusals_by_what_their_body_says(
    fake: Endpoint,
    server: GeminiServer,
    status: int,
    error: dict[str, Any],
    kind: type[ModelError],
    after: float | None,
) -> None:
    body = json.dumps([{"error": {"code": status, "message": "so it is", **error}}])
    server.plan(Reply(status=status, body=body))
    with pytest.raises(kind, match="so it is") as caught:
        await hear(fake(api_key="env:KEY"), request())
    assert (caught.value.status, caught.value.retry_after) == (status, after)


@pytest.mark.parametrize(
    ("event", "what"),
    [
        ({"candidates": "x"}, "'candidates' as a JSON str"),
        ({"candidates": [{"content": []}]}, "a content as a JSON list"),
        ({"candidates": [{"content": {"parts": [7]}}]}, "a part as a JSON int"),
        ({"candidates": [{"content": {"parts": [{"functionCall": "x"}]}}]}, "a function call as a JSON str"),
        ({"candidates": [{"content": {"parts": [{"functionCall": {"name": {}}}]}}]}, "the name of a tool"),
    ],
)
async def test_an_answer_that_nobody_can_read_is_refused_for_good(
    fake: Endpoint, server: GeminiServer, event: dict[str, Any], what: str
) -> None:
    server.plan(Reply(events=[event]))
    with pytest.raises(ModelAnswerMalformed, match=what):
        await hear(fake(), request())


async def test_json_of_any_depth_is_an_answer_or_a_failure(fake: Endpoint, server: GeminiServer) -> None:
    gateway = fake()
    for depth in (100, *range(900, 1000, 7), 100_000):
        arguments = '{"a":' + "[" * depth + "]" * depth + "}"
        server.plan(Reply(calls=[{"name": "read_file", "arguments": arguments}]))
        try:
            (call,) = (await hear(gateway, request(tools=(READ,)))).done.message.calls
        except (ModelAnswerMalformed, ModelUnavailable):
            continue
        assert call.arguments.text == arguments


async def test_parts_nobody_asked_for_are_left_out_and_said(fake: Endpoint, server: GeminiServer) -> None:
    odd = {"candidates": [{"content": {"parts": [{"executableCode": {"code": "1"}}, {"text": 5}]}}]}
    end = {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}]}
    server.plan(Reply(events=[odd, end]))
    done = (await hear(fake(), request())).done
    assert done.message.parts == (TextPart("x"),)
    assert "executableCode" in done.diagnostics[0] and "no text" in done.diagnostics[1]


async def test_a_call_without_arguments_is_an_empty_object(fake: Endpoint, server: GeminiServer) -> None:
    server.plan(Reply(calls=[{**CALL[0], "arguments": ""}, {**CALL[0], "arguments": "null"}]))
    calls = (await hear(fake(), request(tools=(READ,)))).done.message.calls
    assert [call.arguments.text for call in calls] == ["{}", "{}"]


async def test_health(fake: Endpoint, server: GeminiServer) -> None:
    server.key = KEY
    gateway = fake(api_key="env:KEY")
    assert (await gateway.check("fake")).ok
    assert not (await fake().check("fake")).ok
    listed = await (await gateway.provider("fake")).models()
    assert [info.model_id for info in listed or []] == ["fake-small", "fake-large"]
