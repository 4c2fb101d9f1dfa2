"""What is OpenRouter's own: routing, reasoning details, costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from milepost.domain.messages import Sampling
from milepost.domain.prices import FREE, priced
from milepost.domain.providers import OpenRouterProfile, OpenRouterProvider, ThinkingReturn
from milepost.ports.models import ModelInfo
from milepost.providers.gateway import Gateway
from tests.providers.conftest import KEY, READ, Make, hear, request
from tests.providers.test_conformance import CALLS, chat
from tests.support.openrouter_server import OpenRouterServer
from tests.support.validators.openrouter import sign
from tests.support.wire_server import Reply

Endpoint = Callable[..., Gateway]


@pytest.fixture
def server() -> Iterator[OpenRouterServer]:
    made = OpenRouterServer().start()
    yield made
    made.close()


@pytest.fixture
def router(make_gateway: Make, server: OpenRouterServer) -> Endpoint:
    def make(**changes: Any) -> Gateway:
        return make_gateway(OpenRouterProvider(**{"name": "fake", "base_url": server.base_url, **changes}))

    return make


async def test_routing_reasoning_and_usage_are_asked_for(router: Endpoint, server: OpenRouterServer) -> None:
    routing = {"order": ["a", "b"], "allow_fallbacks": False, "data_collection": "deny"}
    profile = OpenRouterProfile(reasoning_tokens=2000, extra_body={"models": ["fake-large"]})
    gateway = router(routing=routing, profile=profile)
    await hear(gateway, request(sampling=Sampling(reasoning_effort="high")))
    await hear(gateway, request())
    first, second = (seen.body for seen in server.chats)
    assert first["provider"] == routing and first["usage"] == {"include": True} and first["models"] == ["fake-large"]
    assert first["reasoning"] == {"effort": "high"} and "reasoning_effort" not in first
    assert second["reasoning"] == {"max_tokens": 2000}


@pytest.mark.parametrize("pieces", [1, 5])
async def test_reasoning_details_go_back_as_they_came(router: Endpoint, server: OpenRouterServer, pieces: int) -> None:
    gateway = router()
    extra = {"signature_pieces": pieces, "encrypted": "b3BhcXVl"}
    server.plan(Reply(reasoning="First I think. \n", text="I look.", calls=CALLS, extra=extra))
    first = await hear(gateway, request(tools=(READ,)))
    assert first.reasoning == "First I think. \n"
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    await hear(gateway, request(tools=(READ,), messages=chat(first), model="fake-large"))
    same, other = (seen.body["messages"][2] for seen in server.chats[1:])
    text = {"type": "reasoning.text", "format": "fake-v1", "index": 0, "text": "First I think. \n"}
    encrypted = {"type": "reasoning.encrypted", "data": "b3BhcXVl", "index": 1}
    assert same.pop("reasoning_details") == [{**text, "signature": sign("First I think. \n")}, encrypted]
    assert same == other and "reasoning" not in same


async def test_details_that_had_to_be_changed_are_dropped_whole(router: Endpoint, server: OpenRouterServer) -> None:
    gateway = router(api_key="env:KEY")
    server.key = KEY
    server.plan(Reply(reasoning=f"the key is {KEY}", text="I look.", calls=CALLS))
    first = await hear(gateway, request(tools=(READ,)))
    state = first.done.message.provider_state
    assert state is not None and KEY not in state.data.text
    await hear(gateway, request(tools=(READ,), messages=chat(first)))
    sent = server.chats[1].body["messages"][2]
    assert not {"reasoning", "reasoning_details"} & set(sent)
    never = router(profile=OpenRouterProfile(thinking_return=ThinkingReturn.NEVER), api_key="env:KEY")
    server.plan(Reply(reasoning="hm", text="I look."))
    assert (await hear(never, request())).done.message.provider_state is None


async def test_the_reported_cost_is_the_cost(router: Endpoint, server: OpenRouterServer) -> None:
    gateway = router()
    for cost, expected in ((0.00014, Decimal("140")), (0, Decimal(0)), ("no", None), (-1, None), (None, None)):
        server.plan(Reply(text="x", extra={} if cost is None else {"cost": cost}))
        usage = (await hear(gateway, request())).done.usage
        assert usage.complete
        assert (usage.cost.micros if usage.cost else None) == expected
        if expected is not None:
            assert priced(usage, FREE).cost == usage.cost, "no price list knows better"


async def test_an_error_of_the_service_behind_is_an_error(router: Endpoint, server: OpenRouterServer) -> None:
    server.plan(Reply(text="one two three four", fault="error_event"))
    with pytest.raises(Exception, match="the slot failed"):
        await hear(router(), request())


async def test_the_list_tells_what_models_can(router: Endpoint) -> None:
    found = await router().models("fake")
    assert found is not None
    assert found[0] == ModelInfo("fake-small", 128_000, ("tools", "images", "reasoning", "json"))
