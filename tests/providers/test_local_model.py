"""Against a real small model that nobody scripted; its quality does not matter, its stream and its usage do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from milepost.domain.messages import FinishReason, Sampling
from milepost.domain.providers import OpenAICompatibleProvider
from milepost.ports.models import ModelRequest, TextDelta
from milepost.providers.gateway import Gateway
from tests.providers.conftest import READ, Make, hear, request, user
from tests.support.model_server import LOCAL_MODEL

pytestmark = [pytest.mark.slow, pytest.mark.llm]

SHORT = Sampling(temperature=0.0, max_tokens=24)


@pytest.fixture
def gateway(make_gateway: Make, local_model: str) -> Gateway:
    return make_gateway(OpenAICompatibleProvider("local", local_model, LOCAL_MODEL))


def say(text: str, **changes: Any) -> ModelRequest:
    return request("local", model=LOCAL_MODEL, messages=[user(text)], **changes)


async def test_a_real_answer_streams_with_real_usage(gateway: Gateway) -> None:
    health = await gateway.check("local")
    assert health.ok and LOCAL_MODEL in health.detail
    heard = await hear(gateway, say("Name three colors.", sampling=SHORT))
    assert heard.text.strip() and heard.text == heard.done.message.text
    assert sum(isinstance(item, TextDelta) for item in heard.items) > 3
    usage = heard.done.usage
    assert usage.complete and usage.input_tokens + usage.cached_input_tokens > 10
    assert 0 < usage.output_tokens <= 24
    assert heard.done.finish in (FinishReason.STOP, FinishReason.LENGTH)


async def test_a_stop_frees_the_model_at_once(gateway: Gateway) -> None:
    stream = gateway.stream(say("Count from one to one thousand.", sampling=Sampling(max_tokens=3000)))
    async for item in stream:
        if isinstance(item, TextDelta):
            break
    await stream.aclose()
    # The server has one slot: were the first answer still being made, this would wait for thousands of tokens.
    heard = await asyncio.wait_for(hear(gateway, say("Say yes.", sampling=SHORT)), 30)
    assert heard.text


async def test_offered_tools_do_no_harm(gateway: Gateway) -> None:
    done = (await hear(gateway, say("Read the file a.txt.", sampling=SHORT, tools=(READ,)))).done
    assert done.usage.complete
    assert done.finish in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS)
