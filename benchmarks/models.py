"""What a streamed event costs beside a bare client, and what each provider type costs to load.

Usage: python -m benchmarks.models [--events N] [--json]

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

import httpx2

from milepost.domain.content import Content
from milepost.domain.messages import Sampling, UserMessage
from milepost.domain.providers import OpenAICompatibleProvider
from milepost.ports.models import ModelRequest
from milepost.providers.gateway import Gateway

ROUNDS = 5

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


async def bare(base_url: str, plan: Callable[[], None]) -> float:
    """CPU seconds of httpx2 and json alone."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    async with httpx2.AsyncClient(trust_env=False) as client:

        async def once() -> None:
            async with client.stream("POST", f"{base_url}/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        json.loads(line[6:])

        return await _cpu(once, plan)


async def ours(base_url: str, plan: Callable[[], None]) -> float:
    """CPU seconds of the gateway."""
    gateway = Gateway({"p": OpenAICompatibleProvider("p", base_url, "m")}, NoSecrets())
    messages = (UserMessage(Content("hello")),)
    request = ModelRequest("p", "m", "a", "", messages, (), Sampling(), 1, 1, "key")

    async def once() -> None:
        async for _ in gateway.stream(request):
            pass

    try:
        return await _cpu(once, plan)
    finally:
        await gateway.close()


async def _cpu(once: Callable[[], Awaitable[None]], plan: Callable[[], None]) -> float:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    command = [sys.executable, "-m", "tests.support.model_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        base_url = server.stdout.readline().strip()

        def plan() -> None:
            reply = {"text": "abcd " * options.events, "piece": 5}
            httpx2.post(base_url.removesuffix("/v1") + "/control/plan", json=[reply], trust_env=False)

        times = {"bare": asyncio.run(bare(base_url, plan)), "gateway": asyncio.run(ours(base_url, plan))}
        server.stdin.close()
    result = {
        "microseconds_per_event": {name: round(spent / options.events * 1e6) for name, spent in times.items()},
        "load": {
            type_: load(f"milepost.providers.{type_}.provider")
            for type_ in ("scripted", "recorded", "openai_compatible")
        },
    }
    print(json.dumps(result) if options.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
