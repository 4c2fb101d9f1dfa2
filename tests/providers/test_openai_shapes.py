"""Answers with values of other types than the protocol has: an answer that was paid for is kept, or refused once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from milepost.domain.errors import ModelAnswerMalformed
from milepost.domain.messages import FinishReason
from milepost.domain.usage import Usage
from milepost.providers.gateway import Gateway
from milepost.providers.openai_compatible.usage import MAX_COUNT, usage_of
from tests.providers.conftest import READ, hear, request
from tests.support.openai_server import OpenAIServer, Reply

Endpoint = Callable[..., Gateway]

INFINITE = float("inf")
NO_USAGE = "The provider reported no usable token usage."


def _event(delta: Any, finish: Any = None, **top: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice], **top}


def _usage(value: Any) -> dict[str, Any]:
    return {**_event({}), "choices": [], "usage": value}


def _call(**function: Any) -> list[dict[str, Any]]:
    call = {"index": 0, "id": function.pop("id", "call_1"), "function": {"arguments": "{}", **function}}
    return [_event({"tool_calls": [call]}), _event({}, "tool_calls")]


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": INFINITE, "completion_tokens": 1},
        {"prompt_tokens": float("nan"), "completion_tokens": 1},
        {"prompt_tokens": 1e308, "completion_tokens": 1},
        {"prompt_tokens": "3", "completion_tokens": [1]},
        {"prompt_tokens": -1, "completion_tokens": True},
        [],
        [1],
        "much",
        7,
    ],
)
async def test_odd_usage_is_unknown_usage(endpoint: Endpoint, model_server: OpenAIServer, usage: Any) -> None:
    model_server.plan(Reply(events=[_event({"content": "whole"}), _event({}, "stop"), _usage(usage)]))
    done = (await hear(endpoint(), request())).done
    assert (done.message.text, done.finish) == ("whole", FinishReason.STOP)
    assert not done.usage.complete
    assert NO_USAGE in done.diagnostics
    assert len(model_server.chats) == 1


def test_counts() -> None:
    assert usage_of({"prompt_tokens": MAX_COUNT, "completion_tokens": 2.0}) == Usage(MAX_COUNT, output_tokens=2)
    assert not usage_of({"prompt_tokens": MAX_COUNT + 1, "completion_tokens": 2}).complete
    details = {"cached_tokens": INFINITE}
    odd = usage_of({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": details})
    assert odd == Usage(3, output_tokens=1)


@pytest.mark.parametrize(("finish", "said"), [(5, "'5'"), (["a"], """'["a"]'"""), ({"x": 1}, "'{")])
async def test_a_finish_reason_that_is_no_text(
    endpoint: Endpoint, model_server: OpenAIServer, finish: Any, said: str
) -> None:
    model_server.plan(Reply(events=[_event({"content": "whole"}), _event({}, finish)]))
    done = (await hear(endpoint(), request())).done
    assert (done.message.text, done.finish) == ("whole", FinishReason.OTHER)
    assert any(f"finish reason {said}" in text for text in done.diagnostics)


@pytest.mark.parametrize(
    "top",
    [
        {"created": INFINITE},
        {"created": 10**18},
        {"created": "now"},
        {"model": 5},
        {"id": ["x"]},
        {"service_tier": {}},
        {"moderation": "x"},
    ],
)
async def test_what_is_beside_the_answer_does_not_matter(
    endpoint: Endpoint, model_server: OpenAIServer, top: dict[str, Any]
) -> None:
    model_server.plan(Reply(events=[_event({"content": "whole"}, **top), _event({}, "stop")]))
    assert (await hear(endpoint(), request())).done.message.text == "whole"


async def test_text_that_is_no_text_is_told(endpoint: Endpoint, model_server: OpenAIServer) -> None:
    events = [_event({"content": "a"}), _event({"content": 5, "refusal": 6}), _event({"content": "b"}, "stop")]
    model_server.plan(Reply(events=events))
    done = (await hear(endpoint(), request())).done
    assert done.message.text == "ab"
    assert any("left out" in text for text in done.diagnostics)


@pytest.mark.parametrize("call_id", [5, {}, None])
async def test_a_number_for_a_tools_name_is_its_digits(
    endpoint: Endpoint, model_server: OpenAIServer, call_id: Any
) -> None:
    model_server.plan(Reply(events=_call(name=7, id=call_id)))
    (call,) = (await hear(endpoint(), request(tools=(READ,)))).done.message.calls
    assert call.tool == "7"
    assert call.call_id.startswith("call_")


@pytest.mark.parametrize(
    ("events", "what"),
    [
        (_call(name=["read_file"]), "the name of a tool as a JSON list"),
        (_call(name=True), "the name of a tool as a JSON bool"),
        ([_event({"tool_calls": "read_file"})], "the tool calls as a JSON str, not as a list"),
        ([_event({"tool_calls": ["read_file"]})], "a tool call as a JSON str"),
        ([_event({"tool_calls": [{"index": 0, "function": "read_file"}]})], "the function of a tool call"),
        ([_event(["hello"])], "a delta as a JSON list"),
        ([{**_event({}), "choices": ["hello"]}], "a choice as a JSON str"),
    ],
)
async def test_an_answer_that_nobody_can_read_is_refused_for_good(
    endpoint: Endpoint, model_server: OpenAIServer, events: list[Any], what: str
) -> None:
    model_server.plan(Reply(events=[_event({"content": "x"}), *events, _event({}, "stop")]))
    with pytest.raises(ModelAnswerMalformed, match=what) as caught:
        await hear(endpoint(), request(tools=(READ,)))
    assert not caught.value.retryable
    assert caught.value.may_have_cost


@pytest.mark.parametrize("late", [{**_event({}), "choices": 7}, {**_event({}), "choices": ["x"]}, _event([])])
async def test_what_comes_after_the_finish_reason_costs_no_answer(
    endpoint: Endpoint, model_server: OpenAIServer, late: dict[str, Any]
) -> None:
    usage = _usage({"prompt_tokens": 3, "completion_tokens": 2})
    model_server.plan(Reply(events=[_event({"content": "whole"}), _event({}, "stop"), late, usage]))
    done = (await hear(endpoint(), request())).done
    assert (done.message.text, done.usage) == ("whole", Usage(3, output_tokens=2))
    assert any("after the finish reason" in text for text in done.diagnostics)
