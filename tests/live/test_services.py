"""Real services with real keys: `pytest tests/live -m live`.

A service is called if its key is in the environment (Ollama: if MILEPOST_LIVE_OLLAMA_MODEL is). Bound of cost: for each
service and run at most `MAX_CALLS` calls, each of at most about 600 tokens sent and `MAX_TOKENS` answered. At 15 US
dollars per million tokens that is below 0.15 dollars a service. MILEPOST_LIVE_<TYPE>_MODEL names another model.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from milepost.config.loading import load_config
from milepost.domain.content import Content
from milepost.domain.messages import FinishReason, Message, ResponseFormat, Sampling, ToolMessage
from milepost.domain.tools import ToolDefinition
from milepost.ports.models import ModelRequest
from milepost.providers.gateway import Gateway
from tests.providers.conftest import Heard, user

pytestmark = pytest.mark.live

MAX_CALLS = 8
MAX_TOKENS = 1_024
SERVICES = [
    ("openai", "OPENAI_API_KEY", "gpt-5-mini"),
    ("openrouter", "OPENROUTER_API_KEY", "openai/gpt-5-mini"),
    ("anthropic", "ANTHROPIC_API_KEY", "claude-haiku-4-5"),
    ("gemini", "GEMINI_API_KEY", "gemini-2.5-flash"),
    ("mistral", "MISTRAL_API_KEY", "mistral-small-latest"),
    ("ollama", None, ""),
]
WEATHER = ToolDefinition(
    "get_weather",
    "The weather of a city now.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@dataclass
class Service:
    """One configured service whose calls are counted."""

    name: str
    model: str
    gateway: Gateway
    calls: int = 0

    async def ask(self, *messages: Message, tools: tuple[ToolDefinition, ...] = (), **sampling: Any) -> Heard:
        self.calls += 1
        assert self.calls <= MAX_CALLS, "the bound of cost"
        limits = Sampling(max_tokens=MAX_TOKENS, **sampling)
        request = ModelRequest(
            self.name, self.model, "live", "Be brief.", messages, tools, limits, self.calls, 1, f"live-{self.calls}"
        )
        return Heard([item async for item in self.gateway.stream(request)])


@pytest.fixture(params=SERVICES, ids=lambda service: str(service[0]))
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    name, key, default = request.param
    model = os.environ.get(f"MILEPOST_LIVE_{name.upper()}_MODEL", default)
    if not model or (key is not None and not os.environ.get(key)):
        pytest.skip(f"set {key or 'MILEPOST_LIVE_OLLAMA_MODEL'} to call {name}")
    config = {"type": name, "model": model, **({} if key is None else {"api_key": f"env:{key}"})}
    (tmp_path / "milepost.yaml").write_text(json.dumps({"providers": {name: config}}))
    loaded = load_config(tmp_path / "milepost.yaml")
    gateway = Gateway(loaded.providers, loaded.secrets)
    yield Service(name, model, gateway)
    await gateway.close()


async def test_the_key_works_and_the_model_is_listed(service: Service) -> None:
    health = await service.gateway.check(service.name, service.model)
    assert health.ok, health
    assert await service.gateway.models(service.name)


async def test_text_streams_and_usage_is_whole(service: Service) -> None:
    heard = await service.ask(user("Say the word 'ready' and nothing else."))
    assert "ready" in heard.text.lower()
    assert heard.done.message.text == heard.text
    assert heard.done.finish is FinishReason.STOP
    assert heard.done.usage.complete and heard.done.usage.total_tokens > 0


async def test_a_tool_call_and_its_reasoning_go_back(service: Service) -> None:
    question = user("What is the weather in Oslo? Use the tool, then answer in one sentence.")
    first = await service.ask(question, tools=(WEATHER,))
    calls = first.done.message.calls
    assert [call.tool for call in calls] == ["get_weather"]
    assert "oslo" in calls[0].arguments.text.lower()
    result = ToolMessage(calls[0].call_id, calls[0].tool, Content("It is -7 degrees and snowing."))
    second = await service.ask(question, first.done.message, result, tools=(WEATHER,))
    assert "7" in second.text


async def test_an_answer_as_json(service: Service) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string"}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    heard = await service.ask(user("The capital of Norway?"), response_format=ResponseFormat(schema, "capital"))
    assert json.loads(heard.text)["capital"] == "Oslo"
