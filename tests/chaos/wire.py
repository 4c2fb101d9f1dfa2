"""The requests that a conversation becomes, as they go out to each provider, judged by that provider's own rules."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from milepost.domain.errors import MilepostError
from milepost.domain.messages import Message, Sampling
from milepost.domain.providers import (
    AnthropicProfile,
    AnthropicProvider,
    GeminiProvider,
    MistralProvider,
    OllamaProvider,
    OpenAICompatibleProvider,
    OpenAIProvider,
    OpenRouterProvider,
    ProviderConfig,
)
from milepost.ports.models import ModelRequest
from milepost.providers.gateway import Gateway
from milepost.tools import definitions
from tests.support.validators import validate

MAX_BODY = 64 * 1024 * 1024
_REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{}"
)

CONFIGURATIONS: dict[str, Callable[[str], ProviderConfig]] = {
    "openai_chat": lambda url: OpenAICompatibleProvider("wire", url, "some-model"),
    "anthropic": lambda url: AnthropicProvider("wire", url, "some-model", profile=AnthropicProfile(thinking="budget")),
    "gemini": lambda url: GeminiProvider("wire", url, "some-model"),
    "mistral": lambda url: MistralProvider("wire", url, "some-model"),
    "openai_responses": lambda url: OpenAIProvider("wire", url, "some-model"),
    "openrouter": lambda url: OpenRouterProvider("wire", url, "some-model"),
    "ollama": lambda url: OllamaProvider("wire", url, "some-model"),
}
"""By wire format (a module of `tests.support.validators`): a provider at an address that speaks it."""


class _NoSecrets:
    def resolve(self, reference: str) -> str:
        raise AssertionError(reference)


@asynccontextmanager
async def _recorder(bodies: list[Any]) -> AsyncIterator[str]:
    """An HTTP server on loopback that keeps what it is sent and answers 400."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            sizes = [line for line in head.split("\r\n") if line.startswith("content-length:")]
            size = int(sizes[0].partition(":")[2])
            assert size <= MAX_BODY
            bodies.append(json.loads(await reader.readexactly(size)))
            writer.write(_REFUSAL)
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}/v1"


class Judge:
    """Sends conversations to a server of its own, by every provider, and judges what arrives.

    One is kept for a whole run: making the providers' clients costs more than all they send.
    """

    def __init__(self) -> None:
        self._bodies: list[Any] = []
        self._stack = AsyncExitStack()
        self._gateway: Gateway | None = None

    async def _open(self) -> Gateway:
        if self._gateway is None:
            url = await self._stack.enter_async_context(_recorder(self._bodies))
            configs = {name: replace(config(url), name=name) for name, config in CONFIGURATIONS.items()}
            self._gateway = Gateway(configs, _NoSecrets())
            self._stack.push_async_callback(self._gateway.close)
        return self._gateway

    async def close(self) -> None:
        """Release the connections."""
        await self._stack.aclose()

    async def refusals(self, messages: Sequence[Message]) -> list[tuple[str, str]]:
        """Why a service would refuse the conversation: (wire format, problem)."""
        gateway = await self._open()
        found: list[tuple[str, str]] = []
        for name in CONFIGURATIONS:
            self._bodies.clear()
            with contextlib.suppress(MilepostError):  # the recorder's answer
                async with aclosing(gateway.stream(replace(_request(messages), provider=name))) as items:
                    async for _ in items:
                        pass
            if not self._bodies:
                found.append((name, "nothing was sent"))
            found += [(name, problem) for body in self._bodies for problem in validate(name, body)]
        return found


def _request(messages: Sequence[Message]) -> ModelRequest:
    return ModelRequest(
        provider="wire",
        model="some-model",
        agent="default",
        system_prompt="You help.",
        messages=tuple(messages),
        tools=definitions(("bash", "read_file", "write_file", "edit_file")),
        sampling=Sampling(),
        call_number=1,
        attempt=1,
        idempotency_key="next",
    )
