"""Building blocks of the provider tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from milepost.domain.content import Content
from milepost.domain.errors import SecretMissing
from milepost.domain.messages import Message, Sampling, UserMessage
from milepost.domain.providers import OpenAICompatibleProvider, ProviderConfig
from milepost.domain.tools import ToolDefinition
from milepost.ports.models import ModelCompleted, ModelItem, ModelRequest, ReasoningDelta, TextDelta
from milepost.providers.gateway import Gateway
from tests.support.openai_server import OpenAIServer

KEY = "sk-test-0123456789abcdef"

READ = ToolDefinition(
    "read_file",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string", "title": "Path"}}, "required": ["path"]},
)


@dataclass
class Secrets:
    """A secret store over a mapping of references."""

    values: dict[str, str] = field(default_factory=lambda: {"env:KEY": KEY})

    def resolve(self, reference: str) -> str:
        try:
            return self.values[reference]
        except KeyError:
            raise SecretMissing(f"The secret reference '{reference}' has no value.", field=reference) from None


@dataclass
class Heard:
    """What a whole stream said."""

    items: list[ModelItem]

    @property
    def text(self) -> str:
        return "".join(item.text for item in self.items if isinstance(item, TextDelta))

    @property
    def reasoning(self) -> str:
        return "".join(item.text for item in self.items if isinstance(item, ReasoningDelta))

    @property
    def done(self) -> ModelCompleted:
        assert [isinstance(item, ModelCompleted) for item in self.items].count(True) == 1
        last = self.items[-1]
        assert isinstance(last, ModelCompleted)
        return last


def user(text: str) -> UserMessage:
    return UserMessage(Content(text))


def request(provider: str = "fake", **changes: Any) -> ModelRequest:
    """A request with defaults for all that a test does not care about."""
    values: dict[str, Any] = {
        "provider": provider,
        "model": "fake-small",
        "agent": "default",
        "system_prompt": "You are a test.",
        "messages": (user("hello"),),
        "tools": (),
        "sampling": Sampling(),
        "call_number": 1,
        "attempt": 1,
        "idempotency_key": "key-1",
    }
    messages: tuple[Message, ...] | None = changes.get("messages")
    if messages is not None:
        changes["messages"] = tuple(messages)
    return ModelRequest(**{**values, **changes})


async def hear(gateway: Gateway, asked: ModelRequest) -> Heard:
    return Heard([item async for item in gateway.stream(asked)])


Make = Callable[..., Gateway]


@pytest.fixture
async def make_gateway() -> AsyncIterator[Make]:
    """Gateways that are closed after the test."""
    made: list[Gateway] = []

    def make(*providers: ProviderConfig, secrets: Secrets | None = None) -> Gateway:
        gateway = Gateway({provider.name: provider for provider in providers}, secrets or Secrets())
        made.append(gateway)
        return gateway

    yield make
    for gateway in made:
        await gateway.close()


@pytest.fixture
def endpoint(make_gateway: Make, model_server: OpenAIServer) -> Callable[..., Gateway]:
    """A gateway with one provider 'fake' on the fake server; keyword arguments change its configuration."""

    def make(**changes: Any) -> Gateway:
        values: dict[str, Any] = {"name": "fake", "base_url": model_server.base_url, "default_model": "fake-small"}
        return make_gateway(OpenAICompatibleProvider(**{**values, **changes}))

    return make
