"""Streaming from an OpenAI-compatible endpoint: what comes, in what shape, and when it counts as an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from milepost.domain.errors import (
    ModelAnswerTooLarge,
    ModelError,
    ModelIncomplete,
    ModelRateLimited,
    ModelRequestRejected,
    ModelTimedOut,
    ModelUnauthorized,
    ModelUnavailable,
)
from milepost.domain.messages import FinishReason, ReasoningPart, Sampling, TextPart
from milepost.domain.providers import EndpointProfile, ModelLimits, ModelTimeouts, OpenAICompatibleProvider
from milepost.domain.usage import Usage
from milepost.providers.gateway import Gateway
from tests.providers.conftest import KEY, READ, Make, Secrets, hear, request
from tests.support.openai_server import OpenAIServer, Reply

Endpoint = Callable[..., Gateway]


async def test_text_and_reasoning_stream_in_pieces_and_equal_the_answer(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    text, thought = "Grüße, 世界! \n" * 5, "First I think. " * 3
    model_server.plan(Reply(text=text, reasoning=thought))
    heard = await hear(endpoint(), request())
    assert heard.text == text
    assert heard.reasoning == thought
    assert len(heard.items) > 10
    assert heard.done.message.parts == (ReasoningPart(thought), TextPart(text))
    assert heard.done.finish is FinishReason.STOP
    assert heard.done.usage == Usage(input_tokens=11, output_tokens=7)
    assert heard.done.diagnostics == ()


async def test_reasoning_inside_tags_is_reasoning(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    deltas = ["<think>", "a plan", "</think>", "\n\nthe answer"]
    events = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    model_server.plan(Reply(events=list(events)), Reply(events=list(events)))
    heard = await hear(endpoint(), request())
    assert (heard.reasoning, heard.text) == ("a plan", "\n\nthe answer")
    heard = await hear(endpoint(profile=EndpointProfile(thinking_tags=None)), request())
    assert (heard.reasoning, heard.text) == ("", "".join(deltas))


async def test_sampling_tools_key_and_headers_are_on_the_wire_and_nothing_else(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    model_server.key = KEY
    gateway = endpoint(
        api_key="env:KEY",
        headers={"X-Team": "docs"},
        profile=EndpointProfile(extra_body={"chat_template_kwargs": {"enable_thinking": False}}),
    )
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=100, reasoning_effort="low", stop=("END",))
    await hear(gateway, request(tools=(READ,), sampling=sampling))
    (seen,) = model_server.chats
    assert seen.body == {
        "model": "fake-small",
        "messages": [{"role": "system", "content": "You are a test."}, {"role": "user", "content": "hello"}],
        "tools": [
            {
                "type": "function",
                "function": {"name": "read_file", "description": "Read a file.", "parameters": READ.parameters},
            }
        ],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 100,
        "reasoning_effort": "low",
        "stop": ["END"],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert set(seen.headers) == {
        "host",
        "accept",
        "content-type",
        "content-length",
        "user-agent",
        "accept-encoding",
        "authorization",
        "x-team",
    }
    assert seen.headers["user-agent"] == "milepost"


async def test_settings_an_endpoint_refuses_are_left_out_and_said(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    profile = EndpointProfile(
        unsupported=frozenset({"temperature", "stop"}),
        supports_tools=False,
        stream_usage=False,
        max_tokens_field="max_completion_tokens",
    )
    sampling = Sampling(temperature=0.5, max_tokens=5, stop=("END",))
    heard = await hear(endpoint(profile=profile), request(tools=(READ,), sampling=sampling))
    body = model_server.chats[0].body
    assert body.keys() == {"model", "messages", "stream", "max_completion_tokens"}
    said = " ".join(heard.done.diagnostics)
    assert "'temperature'" in said and "'stop'" in said and "no tools" in said
    assert not heard.done.usage.complete


async def test_the_environment_adds_nothing_to_a_request(
    endpoint: Endpoint, model_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "leak-me-not")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Leak: leak-me-not")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    await hear(endpoint(), request())
    assert "leak-me-not" not in str(model_server.chats[0].headers)
    assert "authorization" not in model_server.chats[0].headers


ANSWERED = Usage(input_tokens=11, output_tokens=7)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}, ANSWERED),
        (
            {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}},
            Usage(36, 64, 7, 0),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 50,
                "total_tokens": 60,
                "completion_tokens_details": {"reasoning_tokens": 40},
            },
            Usage(10, 0, 10, 40),
        ),
        (  # xAI: reasoning comes on top of completion
            {
                "prompt_tokens": 10,
                "completion_tokens": 50,
                "total_tokens": 100,
                "completion_tokens_details": {"reasoning_tokens": 40},
            },
            Usage(10, 0, 50, 40),
        ),
        (  # DeepSeek
            {
                "prompt_tokens": 100,
                "completion_tokens": 5,
                "prompt_cache_hit_tokens": 60,
                "prompt_cache_miss_tokens": 40,
            },
            Usage(40, 60, 5, 0),
        ),
        ({"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 30}, Usage(70, 30, 5, 0)),  # Moonshot
        (  # vLLM
            {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12, "prompt_tokens_details": None},
            Usage(9, 0, 3, 0),
        ),
        (  # more cached than sent cannot be
            {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}},
            Usage(0, 5, 3, 0, complete=False),
        ),
        ({"prompt_tokens": 5}, Usage(5, 0, 0, 0, complete=False)),
        ({"prompt_tokens": -1, "completion_tokens": 2}, Usage(0, 0, 2, 0, complete=False)),
    ],
)
async def test_usage_is_four_disjoint_classes(
    endpoint: Endpoint, model_server: OpenAIServer, usage: dict[str, Any], expected: Usage
) -> None:
    model_server.plan(Reply(text="x", usage=usage))
    assert (await hear(endpoint(), request())).done.usage == expected


@pytest.mark.parametrize("usage_at", ["end", "finish", "each", "twice"])
async def test_usage_counts_once_wherever_it_is_reported(
    endpoint: Endpoint, model_server: OpenAIServer, usage_at: str
) -> None:
    model_server.plan(Reply(text="some text", usage_at=usage_at))
    assert (await hear(endpoint(), request())).done.usage == ANSWERED


async def test_missing_usage_is_unknown_not_zero(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(text="some text", usage_at="none"))
    done = (await hear(endpoint(), request())).done
    assert done.usage == Usage(complete=False)
    assert "usage" in done.diagnostics[0]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("guardrail_intervened", FinishReason.OTHER),
        ("tool_calls", FinishReason.STOP),
    ],
)
async def test_finish_reasons(endpoint: Endpoint, model_server: OpenAIServer, raw: str, expected: FinishReason) -> None:
    model_server.plan(Reply(text="x", finish=raw))
    done = (await hear(endpoint(), request())).done
    assert done.finish is expected
    assert bool(done.diagnostics) == (raw in ("guardrail_intervened", "tool_calls"))


async def test_a_refusal_is_a_filtered_answer_with_its_words(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(refusal="I cannot help with that."))
    done = (await hear(endpoint(), request())).done
    assert done.finish is FinishReason.CONTENT_FILTER
    assert "I cannot help" in done.diagnostics[0]


@pytest.mark.parametrize("fault", ["eof", "fin", "rst"])
async def test_a_cut_stream_is_never_an_answer(endpoint: Endpoint, model_server: OpenAIServer, fault: str) -> None:
    model_server.plan(Reply(text="one two three four five six", fault=fault))
    with pytest.raises(ModelIncomplete) as caught:
        await hear(endpoint(), request())
    assert caught.value.retryable


@pytest.mark.parametrize("fault", ["eof", "fin"])
async def test_a_stream_cut_before_its_first_event(endpoint: Endpoint, model_server: OpenAIServer, fault: str) -> None:
    model_server.plan(Reply(text="x", fault=fault, fault_after=0))
    with pytest.raises((ModelIncomplete, ModelUnavailable)):
        await hear(endpoint(), request())


@pytest.mark.parametrize("fault", ["fin", "rst"])
async def test_a_cut_after_the_finish_reason_costs_the_usage_only(
    endpoint: Endpoint, model_server: OpenAIServer, fault: str
) -> None:
    model_server.plan(Reply(text="whole", fault=fault, fault_after=3))
    heard = await hear(endpoint(), request())
    assert heard.done.finish is FinishReason.STOP
    assert heard.done.message.text == "whole"
    assert not heard.done.usage.complete


async def test_a_server_that_says_no_done_is_fine(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(text="whole", done=False))
    assert (await hear(endpoint(), request())).done.usage == ANSWERED


async def test_a_stall_after_the_finish_reason_ends_soon(
    endpoint: Endpoint, model_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.providers.deadlines.TAIL_SECONDS", 0.2)
    model_server.plan(Reply(text="whole", fault="stall", fault_after=3))
    # Far less than the default limits, and than the server's own patience.
    done = (await asyncio.wait_for(hear(endpoint(), request()), 30)).done
    assert done.message.text == "whole" and not done.usage.complete


async def test_an_error_event_in_a_good_stream_is_an_error(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(text="one two three four", fault="error_event"))
    with pytest.raises(ModelUnavailable, match="the slot failed"):
        await hear(endpoint(), request())


@pytest.mark.parametrize(
    "event", ["data: {not json\n\n", "data: [1]\n\n", "data: 5\n\n", 'data: {"choices": 7}\n\n', "data: \udcff\n\n"]
)
async def test_garbage_is_a_failure_of_the_provider(endpoint: Endpoint, model_server: OpenAIServer, event: str) -> None:
    model_server.plan(Reply(events=[event]))
    with pytest.raises((ModelUnavailable, ModelIncomplete)):
        await hear(endpoint(), request())


STATUSES: list[tuple[int, dict[str, str], type[ModelError], float | None]] = [
    (429, {"Retry-After": "7"}, ModelRateLimited, 7.0),
    (429, {}, ModelRateLimited, None),
    (429, {"Retry-After": "-5"}, ModelRateLimited, None),
    (500, {}, ModelUnavailable, None),
    (502, {}, ModelUnavailable, None),
    (503, {"Retry-After": "2"}, ModelUnavailable, 2.0),
    (504, {}, ModelTimedOut, None),
    (401, {}, ModelUnauthorized, None),
    (403, {}, ModelUnauthorized, None),
    (400, {}, ModelRequestRejected, None),
    (404, {}, ModelRequestRejected, None),
    (413, {}, ModelRequestRejected, None),
    (422, {}, ModelRequestRejected, None),
    (307, {"Location": "http://127.0.0.1:9/else"}, ModelRequestRejected, None),
]


@pytest.mark.parametrize(("status", "headers", "kind", "after"), STATUSES)
async def test_failures_by_class(
    endpoint: Endpoint,
    model_server: OpenAIServer,
    status: int,
    headers: dict[str, str],
    kind: type[ModelError],
    after: float | None,
) -> None:
    model_server.plan(Reply(status=status, headers=headers, body='{"error": {"message": "it says so"}}'))
    with pytest.raises(ModelError) as caught:
        await hear(endpoint(api_key="env:KEY"), request())
    error = caught.value
    assert type(error) is kind
    assert (error.status, error.retry_after) == (status, after)
    assert "it says so" in error.message
    assert error.__cause__ is None
    assert len(model_server.requests) == 1, "nothing may be retried or followed here"


async def test_used_up_credit_is_not_a_rate_limit(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    body = '{"error": {"message": "no credit left", "code": "insufficient_quota", "type": "insufficient_quota"}}'
    model_server.plan(Reply(status=429, body=body))
    with pytest.raises(ModelRequestRejected, match="no credit left"):
        await hear(endpoint(), request())


async def test_a_refused_key_names_the_reference_and_never_the_key(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    model_server.key = "another"
    with pytest.raises(ModelUnauthorized) as caught:
        await hear(endpoint(api_key="env:KEY"), request())
    assert "env:KEY" in str(caught.value)
    assert KEY not in str(caught.value) and KEY[3:] not in str(caught.value)


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_error_bodies_of_megabytes_are_bounded_and_free_of_secrets(
    endpoint: Endpoint, model_server: OpenAIServer, status: int
) -> None:
    body = f"<html>{KEY} Bearer {KEY} sk-other-key-1234567 " + "\x1b[31mx\0é" * 1_000_000
    model_server.plan(Reply(status=status, body=body))
    gateway = endpoint(api_key="env:KEY")
    with pytest.raises(ModelError) as caught:
        await hear(gateway, request())
    text = str(caught.value)
    assert len(text.encode()) <= 8 * 1024
    assert KEY not in text and "sk-other" not in text
    assert "\x1b" not in text and "\0" not in text
    # The connection with the unread rest is given up; the next call gets its own.
    assert (await hear(gateway, request())).text == "You said: hello"
    assert [seen.connection for seen in model_server.chats] == [1, 2]


async def test_a_secret_header_is_sent_and_hidden(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    gateway = endpoint(secret_headers={"X-Api-Key": "env:KEY"})
    model_server.plan(Reply(status=400, body=f"bad: {KEY}"))
    with pytest.raises(ModelRequestRejected) as caught:
        await hear(gateway, request())
    assert model_server.chats[0].headers["x-api-key"] == KEY
    assert KEY not in str(caught.value)


async def test_an_unreachable_provider(make_gateway: Make) -> None:
    gateway = make_gateway(OpenAICompatibleProvider("fake", "http://127.0.0.1:1/v1", "m"))
    with pytest.raises(ModelUnavailable) as caught:
        await hear(gateway, request())
    assert "cannot be reached" in caught.value.message and "http://127.0.0.1:1/v1" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("timeouts", "fault_after", "field"),
    [
        (ModelTimeouts(first_event=0.2), 0, "timeouts.first_event"),
        (ModelTimeouts(idle=0.2), 3, "timeouts.idle"),
        (ModelTimeouts(total=0.3), 3, "timeouts.total"),
        (ModelTimeouts(total=0.3), 0, "timeouts.total"),
    ],
)
async def test_a_stall_is_ended_by_the_limit_it_passes(
    endpoint: Endpoint, model_server: OpenAIServer, timeouts: ModelTimeouts, fault_after: int, field: str
) -> None:
    model_server.plan(Reply(text="one two three four", fault="stall", fault_after=fault_after))
    with pytest.raises(ModelTimedOut) as caught:
        await hear(endpoint(timeouts=timeouts), request())
    assert caught.value.field == field
    model_server.wait(lambda: model_server.chats[0].closed_at)


async def test_a_slow_stream_is_no_stall(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    # Each piece comes within the limits of idle and first event, all together take longer than either.
    model_server.plan(Reply(text="x" * 80, delay=0.06))
    heard = await hear(endpoint(timeouts=ModelTimeouts(first_event=0.4, idle=0.4)), request())
    assert heard.text == "x" * 80


async def test_arguments_that_stream_for_long_are_no_missing_first_event(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    calls = [{"name": "read_file", "arguments": '{"path": "' + "x" * 60 + '"}'}]
    model_server.plan(Reply(calls=calls, delay=0.06))
    heard = await hear(endpoint(timeouts=ModelTimeouts(first_event=0.3, idle=0.3)), request(tools=(READ,)))
    assert heard.done.finish is FinishReason.TOOL_CALLS


async def test_bounds_on_bytes_and_events(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    # Both servers hold the connection open: only the client can end it.
    model_server.plan(Reply(text="x" * 50_000, piece=10_000, fault="stall", fault_after=6))
    model_server.plan(Reply(text="x" * 500, piece=1, fault="stall", fault_after=300))
    with pytest.raises(ModelAnswerTooLarge) as caught:
        await hear(endpoint(limits=ModelLimits(response_bytes=20_000)), request())
    assert "20000" in str(caught.value)
    with pytest.raises(ModelAnswerTooLarge) as caught:
        await hear(endpoint(limits=ModelLimits(events=100)), request())
    assert "100" in str(caught.value)
    model_server.wait(lambda: model_server.chats[0].closed_at and model_server.chats[1].closed_at)


async def test_an_event_of_megabytes_without_a_line_end_is_bounded(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    model_server.plan(Reply(events=["data: " + "x" * 3_000_000]))
    with pytest.raises(ModelAnswerTooLarge) as caught:
        await hear(endpoint(limits=ModelLimits(event_bytes=1_000_000)), request())
    assert caught.value.field == "limits.event_bytes" and "1000000" in caught.value.message
    # Many events, each within the bound, are no large one.
    model_server.plan(Reply(text="x" * 9_000, piece=1_000))
    assert (await hear(endpoint(limits=ModelLimits(event_bytes=2_000)), request())).text == "x" * 9_000


async def test_compressed_answers_are_refused(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(text="x", headers={"Content-Encoding": "gzip"}))
    with pytest.raises(ModelRequestRejected, match="gzip"):
        await hear(endpoint(), request())


@pytest.mark.parametrize("how", ["aclose", "cancel"])
async def test_ending_early_closes_the_connection_at_once(
    endpoint: Endpoint, model_server: OpenAIServer, how: str
) -> None:
    gateway = endpoint()
    model_server.plan(Reply(text="x" * 8_000, delay=0.01))
    first = asyncio.Event()

    async def consume() -> None:
        stream = gateway.stream(request())
        async for _ in stream:
            first.set()
            if how == "aclose":
                await stream.aclose()
                return

    task = asyncio.create_task(consume())
    await asyncio.wait_for(first.wait(), 10)
    ended = time.monotonic()
    if how == "cancel":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        await task
    model_server.wait(lambda: model_server.chats[0].closed_at)
    # Generous: without closing, the answer would go on for ten seconds.
    assert (model_server.chats[0].closed_at or 0) - ended < 5
    assert model_server.chats[0].events_sent < 900


async def test_cancelling_while_the_first_event_is_awaited_closes_too(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    model_server.plan(Reply(text="x", fault="stall", fault_after=0))
    task = asyncio.create_task(hear(endpoint(), request()))
    await asyncio.to_thread(model_server.wait, lambda: model_server.chats)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    model_server.wait(lambda: model_server.chats[0].closed_at)


async def test_connections_are_kept_between_whole_calls(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    gateway = endpoint()
    for _ in range(3):
        await hear(gateway, request())
    assert {seen.connection for seen in model_server.chats} == {1}


async def test_a_changed_key_counts_from_the_next_call(make_gateway: Make, model_server: OpenAIServer) -> None:
    secrets = Secrets({"env:KEY": "key-number-one"})
    config = OpenAICompatibleProvider("fake", model_server.base_url, "fake-small", api_key="env:KEY")
    gateway = make_gateway(config, secrets=secrets)
    await hear(gateway, request())
    secrets.values["env:KEY"] = "key-number-two"
    await hear(gateway, request())
    sent = [seen.headers["authorization"] for seen in model_server.chats]
    assert sent == ["Bearer key-number-one", "Bearer key-number-two"]


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel", " padded "])
async def test_a_key_that_cannot_be_sent_is_said_without_it(make_gateway: Make, key: str) -> None:
    config = OpenAICompatibleProvider("fake", "http://127.0.0.1:1/v1", "m", api_key="env:KEY")
    with pytest.raises(ModelUnauthorized) as caught:
        await hear(make_gateway(config, secrets=Secrets({"env:KEY": key})), request())
    assert "env:KEY" in caught.value.message and key.strip() not in str(caught.value)
