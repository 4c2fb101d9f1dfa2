"""Streaming from an OpenAI-compatible endpoint: what is its own; test_conformance.py has what all types share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from milepost.domain.errors import (
    ModelIncomplete,
    ModelRequestRejected,
    ModelUnauthorized,
    ModelUnavailable,
)
from milepost.domain.messages import FinishReason, Sampling
from milepost.domain.providers import EndpointProfile, ModelTimeouts, OpenAICompatibleProvider
from milepost.domain.usage import Usage
from milepost.providers.gateway import Gateway
from tests.providers.conftest import KEY, READ, Make, Secrets, hear, request
from tests.support.openai_server import OpenAIServer, Reply

Endpoint = Callable[..., Gateway]


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


async def test_a_server_that_says_no_done_is_fine(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(text="whole", done=False))
    assert (await hear(endpoint(), request())).done.usage == ANSWERED


@pytest.mark.parametrize(
    "event", ["data: {not json\n\n", "data: [1]\n\n", "data: 5\n\n", 'data: {"choices": 7}\n\n', "data: \udcff\n\n"]
)
async def test_garbage_is_a_failure_of_the_provider(endpoint: Endpoint, model_server: OpenAIServer, event: str) -> None:
    model_server.plan(Reply(events=[event]))
    with pytest.raises((ModelUnavailable, ModelIncomplete)):
        await hear(endpoint(), request())


async def test_used_up_credit_is_not_a_rate_limit(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    body = '{"error": {"message": "no credit left", "code": "insufficient_quota", "type": "insufficient_quota"}}'
    model_server.plan(Reply(status=429, body=body))
    with pytest.raises(ModelRequestRejected, match="no credit left"):
        await hear(endpoint(), request())


async def test_a_secret_header_is_sent_and_hidden(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    gateway = endpoint(secret_headers={"X-Api-Key": "env:KEY"})
    model_server.plan(Reply(status=400, body=f"bad: {KEY}"))
    with pytest.raises(ModelRequestRejected) as caught:
        await hear(gateway, request())
    assert model_server.chats[0].headers["x-api-key"] == KEY
    assert KEY not in str(caught.value)


async def test_arguments_that_stream_for_long_are_no_missing_first_event(
    endpoint: Endpoint, model_server: OpenAIServer
) -> None:
    calls = [{"name": "read_file", "arguments": '{"path": "' + "x" * 60 + '"}'}]
    model_server.plan(Reply(calls=calls, delay=0.06))
    heard = await hear(endpoint(timeouts=ModelTimeouts(first_event=0.3, idle=0.3)), request(tools=(READ,)))
    assert heard.done.finish is FinishReason.TOOL_CALLS


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


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel", " padded "])
async def test_a_key_that_cannot_be_sent_is_said_without_it(make_gateway: Make, key: str) -> None:
    config = OpenAICompatibleProvider("fake", "http://127.0.0.1:1/v1", "m", api_key="env:KEY")
    with pytest.raises(ModelUnauthorized) as caught:
        await hear(make_gateway(config, secrets=Secrets({"env:KEY": key})), request())
    assert "env:KEY" in caught.value.message and key.strip() not in str(caught.value)
