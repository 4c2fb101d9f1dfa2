"""What a streamed event costs beside a bare client, and what each provider type costs to load.

Usage: python -m benchmarks.models [--events N] [--types TYPE ...] [--json]

Both clients read the same answer from the same server, which runs in a process of its own, so that CPU time counts the
client alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import httpx2

from milepost.domain.content import Content
from milepost.domain.messages import Sampling, UserMessage
from milepost.domain.providers import (
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

ROUNDS = 5
TYPES: dict[str, Callable[..., ProviderConfig]] = {
    "openai_compatible": OpenAICompatibleProvider,
    "openrouter": OpenRouterProvider,
    "openai": OpenAIProvider,
    "ollama": OllamaProvider,
    "anthropic": AnthropicProvider,
    "gemini": GeminiProvider,
    "mistral": MistralProvider,
}
Plan = Callable[[], None]

_LOAD = """
import importlib, json, pathlib, sys, time
import milepost.providers.gateway

def state():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return time.process_time(), pages * 4096 / 1e6, len(sys.modules)

before = state()
importlib.import_module(sys.argv[1])
cpu, rss, modules = (after - start for after, start in zip(state(), before))
print(json.dumps({"cpu_s": round(cpu, 2), "rss_mb": round(rss), "modules": modules}))
"""


class NoSecrets:
    def resolve(self, reference: str) -> str:
        raise AssertionError(reference)


async def bare(request: httpx2.Request, plan: Plan) -> float:
    """CPU seconds of httpx2 and json alone, for the very request that the gateway makes."""
    async with httpx2.AsyncClient(trust_env=False) as client:

        async def once() -> None:
            async with client.stream("POST", request.url, content=request.content, headers=request.headers) as response:
                async for line in response.aiter_lines():
                    data = line.removeprefix("data: ")
                    if data.startswith("{"):
                        json.loads(data)

        return await _cpu(once, plan)


async def ours(config: ProviderConfig, plan: Plan) -> float:
    """CPU seconds of the gateway."""
    gateway = Gateway({config.name: config}, NoSecrets())
    messages = (UserMessage(Content("hello")),)
    request = ModelRequest(config.name, "m", "a", "", messages, (), Sampling(), 1, 1, "key")

    async def once() -> None:
        async for _ in gateway.stream(request):
            pass

    try:
        return await _cpu(once, plan)
    finally:
        await gateway.close()


async def _cpu(once: Callable[[], Awaitable[None]], plan: Plan) -> float:
    times: list[float] = []
    for _ in range(ROUNDS + 1):
        plan()
        began = time.process_time()
        await once()
        times.append(time.process_time() - began)
    return min(times[1:])


def load(module: str) -> dict[str, float]:
    """CPU seconds, MB and modules that importing a provider's module adds to the gateway; median of three."""
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", _LOAD, module], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def per_event(type_: str, events: int) -> dict[str, float]:
    """Microseconds of CPU per event of one provider type and of a bare client on the same answer."""
    command = [sys.executable, "-m", "tests.support.model_server", type_]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        base_url = server.stdout.readline().strip()
        parts = urlsplit(base_url)
        control = f"{parts.scheme}://{parts.netloc}/control"

        def plan() -> None:
            reply = {"text": "abcd " * events, "piece": 5}
            httpx2.post(f"{control}/plan", json=[reply], trust_env=False)

        config = TYPES[type_](name="p", base_url=base_url)
        gateway = asyncio.run(ours(config, plan))
        seen = httpx2.get(f"{control}/log", trust_env=False).json()["requests"][-1]
        url = f"{parts.scheme}://{parts.netloc}{seen['path']}"
        headers = {"content-type": "application/json"}
        request = httpx2.Request("POST", url, json=seen["body"], headers=headers)
        alone = asyncio.run(bare(request, plan))
        server.stdin.close()
    return {"gateway": round(gateway / events * 1e6), "bare": round(alone / events * 1e6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--types", nargs="*", default=list(TYPES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = {
        "microseconds_per_event": {type_: per_event(type_, options.events) for type_ in options.types},
        "load": {
            type_: load(f"milepost.providers.{type_}.provider") for type_ in ("scripted", "recorded", *options.types)
        },
    }
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
