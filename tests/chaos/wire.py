"""The requests that a conversation becomes, as they go out to each provider, judged by that provider's own rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from milepost.domain.errors import MilepostError
from milepost.domain.messages import Message, Sampling
from milepost.domain.providers import (
    AnthropicProfile,
    AnthropicProvider,
    GeminiProvider,
    MistralProvider,
    OpenAICompatibleProvider,
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


async def refusals(messages: Sequence[Message]) -> list[tuple[str, str]]:
    """Why a service would refuse the conversation: (wire format, problem)."""
    found: list[tuple[str, str]] = []
    for name, config in CONFIGURATIONS.items():
        bodies: list[Any] = []
        async with _recorder(bodies) as url:
            gateway = Gateway({"wire": config(url)}, _NoSecrets())
            try:
                async with aclosing(gateway.stream(_request(messages))) as items:
                    async for _ in items:
                        pass
            except MilepostError:
                pass  # the recorder's answer
            finally:
                await gateway.close()
        if not bodies:
            found.append((name, "nothing was sent"))
        found += [(name, problem) for body in bodies for problem in validate(name, body)]
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
