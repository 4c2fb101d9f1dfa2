"""What can be called with the configured keys, told over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from milepost.bootstrap.system import UuidIds
from milepost.domain.agents import AgentConfig
from milepost.domain.errors import SecretMissing
from milepost.domain.providers import OpenAICompatibleProvider, Route, ScriptedProvider
from milepost.providers.gateway import Gateway
from milepost.services.models import TRIAL_TOOL, ModelService
from tests.api.stack import Stack
from tests.support.model_server import model_server
from tests.support.openai_server import OpenAIServer, Reply

__all__ = ["model_server"]


class Secrets:
    def resolve(self, reference: str) -> str:
        raise SecretMissing(f"The secret reference '{reference}' has no value.", field=reference, fix="Set it.")


@pytest.fixture
async def models(stack: Stack, model_server: OpenAIServer) -> AsyncIterator[Stack]:
    """Agents on a fake server, with fallbacks that have no key, no server, and a model that is not listed."""
    url = model_server.base_url
    providers = {
        "work": OpenAICompatibleProvider("work", url, "fake-small"),
        "keyless": OpenAICompatibleProvider("keyless", url, "fake-small", api_key="env:NONE"),
        "other": OpenAICompatibleProvider("other", url, "fake-large"),
        "gone": OpenAICompatibleProvider("gone", "http://127.0.0.1:1/v1", "m"),
        "scripted": ScriptedProvider("scripted"),
    }
    fallbacks = (Route("keyless", "fake-small"), Route("gone", "m"), Route("work", "fake-smal"))
    agents = {
        "a": AgentConfig("a", "work", "fake-small", fallbacks=fallbacks),
        "b": AgentConfig("b", "work", "fake-small"),
    }
    gateway = Gateway(providers, Secrets())
    service = ModelService(gateway, providers, agents, UuidIds())
    stack.app.state.services = replace(stack.services, models=service)
    yield stack
    await gateway.close()


async def answered(stack: Stack, method: str, path: str, **options: Any) -> Any:
    response = await stack.client.request(method, f"/api/v1/{path}", **options)
    assert response.status_code == 200, response.text
    return response.json()


async def test_each_provider_tells_its_models_or_why_it_cannot(models: Stack) -> None:
    found = {item["provider"]: item for item in (await answered(models, "GET", "models"))["providers"]}
    assert [model["model"] for model in found["work"]["models"]] == ["fake-small", "fake-large"]
    assert found["work"]["ok"] and found["work"]["default_model"] == "fake-small"
    assert not found["keyless"]["ok"] and "env:NONE" in found["keyless"]["detail"]
    assert not found["gone"]["ok"] and "Cannot be reached" in found["gone"]["detail"]
    assert found["scripted"]["ok"] and found["scripted"]["models"] == []
    (one,) = (await answered(models, "GET", "models", params={"provider": "work"}))["providers"]
    assert one == found["work"]
    missing = await models.client.get("/api/v1/models", params={"provider": "wrk"})
    assert missing.status_code == 404 and "'work'" in missing.json()["fix"]


async def test_every_route_in_use_is_checked_without_a_call(models: Stack, model_server: OpenAIServer) -> None:
    found = await answered(models, "POST", "models/check", json={})
    routes = {(item["provider"], item["model"]): item for item in found["routes"]}
    assert not found["ok"] and len(routes) == 4
    assert routes["work", "fake-small"]["ok"]
    assert routes["work", "fake-small"]["used_by"] == ["agent a", "agent b"]
    assert routes["keyless", "fake-small"]["used_by"] == ["fallback of agent a"]
    for key, word in (
        (("keyless", "fake-small"), "env:NONE"),
        (("gone", "m"), "reached"),
        (("work", "fake-smal"), "list"),
    ):
        assert not routes[key]["ok"] and word in routes[key]["detail"] and routes[key]["fix"]
    assert "fake-small" in routes["work", "fake-smal"]["fix"]
    assert not model_server.chats


@pytest.mark.parametrize("calls", [True, False])
async def test_a_real_call_tells_whether_tools_work(models: Stack, model_server: OpenAIServer, calls: bool) -> None:
    call = {"name": TRIAL_TOOL.name, "arguments": '{"status":"ready"}'}
    # The plan is taken by the first request of any kind: the list is asked for before the call.
    model_server.plan(Reply(status=404, body="no list"), Reply(text="ok", calls=[call] if calls else []))
    (route,) = (await answered(models, "POST", "models/check", json={"provider": "other", "call": True}))["routes"]
    assert route["ok"] and route["used_by"] == []
    assert route["trial"]["called_tool"] is calls
    assert route["trial"]["usage"]["input_tokens"] == 11
    (sent,) = model_server.chats
    assert sent.body["max_tokens"] == 1024 and len(sent.body["tools"]) == 1
    assert len(str(sent.body)) < 1200, "a trial is small"


async def test_a_failing_call_is_told_with_its_fix(models: Stack, model_server: OpenAIServer) -> None:
    model_server.plan(Reply(status=404, body="no list"), Reply(status=401, body="bad key"))
    found = await answered(models, "POST", "models/check", json={"provider": "other", "call": True})
    (route,) = found["routes"]
    assert not found["ok"] and "refused the key" in route["detail"] and route["fix"]
