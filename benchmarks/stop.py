"""From the request to stop a turn to its effect: the provider's connection closed, the sandbox without a process.

Usage: python -m benchmarks.stop [--stops N] [--only model|tool|silent] [--json]

The whole product in one process (ledger on SQLite in a temporary folder, HTTP server, worker) beside a real Temporal
dev server, a fake model server and Podman. `model` counts from the request to stop to the moment the model server sees
its connection closed in the middle of an answer; `silent` the same before the first word. `tool` counts to the end of
the last process of a command that has a child in a session of its own and one that forked twice and left; the kernel
tells when a process ends (pidfd). `answer` is the request to stop until its 202, `over` until the turn's end is
recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from milepost.domain.providers import OpenAICompatibleProvider, ScriptedProvider
from milepost.providers.gateway import Gateway
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.storage import FileBlobStore, upgrade
from milepost.temporal.dev_server import DevServer
from tests.api.stack import Stack as Served
from tests.api.stack import running_stack
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.podman import remove_owned
from tests.support.temporal import Stack as Working
from tests.support.temporal import build_stack

MAX_STOPS = 500
LIMIT_SECONDS = 540
WAIT_SECONDS = 60
TREE = "(setsid env -i sleep {n} </dev/null >/dev/null 2>&1 &); setsid sleep {n} & sleep {n} & sleep {n}"
PROCESSES = 4


@dataclass
class Times:
    """Milliseconds from the request, one of each per stop."""

    gone: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)
    over: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        found: dict[str, float] = {"stops": float(len(self.gone))}
        for name, values in (("gone", self.gone), ("answer", self.answer), ("over", self.over)):
            cuts = statistics.quantiles(values, n=100)
            found |= {f"{name}_p50_ms": cuts[49], f"{name}_p95_ms": cuts[94], f"{name}_max_ms": max(values)}
        return found


@dataclass
class Product:
    """The served side and the working side of one instance."""

    served: Served
    working: Working
    models: OpenAIServer

    async def measure(self, session: str, turn_id: str, gone: Callable[[], Awaitable[float]], times: Times) -> None:
        waiting = asyncio.create_task(gone())
        await asyncio.sleep(0)
        started = time.monotonic()
        response = await self.served.client.post(f"/api/v1/turns/{turn_id}/stop", json={})
        times.answer.append((time.monotonic() - started) * 1000)
        assert response.status_code == 202, response.text
        times.gone.append((await waiting - started) * 1000)
        await self.working.ended(turn_id, WAIT_SECONDS)
        times.over.append((time.monotonic() - started) * 1000)

    async def model(self, stops: int, reply: Reply) -> Times:
        times, session = Times(), await self.served.open_session()
        for _ in range(stops):
            self.models.requests.clear()
            self.models.plan(reply)
            turn = await self.served.begin(session, provider="fake", model="fake-small")
            chats = await _until(lambda: [chat for chat in self.models.chats if chat.events_sent >= reply.fault_after])
            await asyncio.sleep(0.1)

            async def closed(chat: object = chats[0]) -> float:
                return float(await _until(lambda: getattr(chat, "closed_at")))  # noqa: B009

            await self.measure(session, turn["turn_id"], closed, times)
        return times

    async def tool(self, stops: int) -> Times:
        times, session = Times(), await self.served.open_session()
        for number in range(stops):
            mark = f"{70_000 + number}.{uuid.uuid4().int % 10**6}"
            calls = [{"tool": "bash", "args": {"command": TREE.format(n=mark)}}]
            script = json.dumps({"responses": [{"calls": calls}]})
            turn = await self.served.begin(session, provider="scripted", script=script)
            found = await _until(lambda mark=mark: _tree(mark) if len(_tree(mark)) >= PROCESSES else [], 0.05)
            await self.measure(session, turn["turn_id"], lambda found=found: _all_gone(found), times)
            assert _tree(mark) == [], "a process was born meanwhile"
        return times


async def _until(condition: Callable[[], object], pause: float = 0.0005) -> object:
    async with asyncio.timeout(WAIT_SECONDS):
        while not (value := condition()):  # noqa: ASYNC110 - it waits for what this process cannot be told of
            await asyncio.sleep(pause)
    return value


def _tree(mark: str) -> list[int]:
    """Processes of this host's containers that sleep for `mark` seconds."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[:2] == [b"sleep", mark.encode()]:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


async def _all_gone(pids: list[int]) -> float:
    """When the last of these processes has ended."""
    loop, left, done = asyncio.get_running_loop(), set(), asyncio.Event()
    ended = 0.0

    def gone(fd: int) -> None:
        nonlocal ended
        ended = time.monotonic()
        loop.remove_reader(fd)
        os.close(fd)
        left.discard(fd)
        if not left:
            done.set()

    for pid in pids:
        fd = os.pidfd_open(pid)
        left.add(fd)
        loop.add_reader(fd, gone, fd)
    async with asyncio.timeout(WAIT_SECONDS):
        await done.wait()
    return ended


class _NoSecrets:
    def resolve(self, reference: str) -> str:
        raise AssertionError(reference)


@asynccontextmanager
async def _product(podman: bool) -> AsyncIterator[Product]:
    async with AsyncExitStack() as closing:
        root = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="mp-")))
        url = f"sqlite:///{root}/ledger.db"
        await upgrade(url)
        served = await closing.enter_async_context(running_stack(url, root))
        models = OpenAIServer().start()
        closing.callback(models.close)
        fake = OpenAICompatibleProvider("fake", models.base_url, default_model="fake-small")
        gateway = Gateway({"scripted": ScriptedProvider("scripted"), "fake": fake}, _NoSecrets())
        closing.push_async_callback(gateway.close)
        sandboxes = None
        if podman:
            sandboxes = await closing.enter_async_context(_sandboxes(root, served.ledger.instance_id))
        server = DevServer(None, root / "temporal.log")
        closing.push_async_callback(server.stop)
        address = await server.start()
        blobs = FileBlobStore(root / "blobs")
        working = await build_stack(served.ledger, served.notifier, blobs, gateway, sandboxes, address)
        services = served.app.state.services
        served.app.state.services = replace(services, turns=working.turns, sessions=working.sessions)
        await closing.enter_async_context(working.worker())
        yield Product(served, working, models)


@asynccontextmanager
async def _sandboxes(root: Path, instance: str) -> AsyncIterator[PodmanProvider]:
    provider = PodmanProvider(root, instance)
    try:
        await provider.build_image()
        yield provider
    finally:
        await remove_owned(provider)
        await provider.close()


async def _measure(stops: int, only: str | None) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}
    async with asyncio.timeout(LIMIT_SECONDS), _product(only in (None, "tool")) as product:
        if only in (None, "model"):
            answer = Reply(text="word " * 5000, piece=5, delay=0.01, fault_after=20)
            results["model"] = (await product.model(stops, answer)).summary()
        if only in (None, "silent"):
            results["silent"] = (await product.model(stops, Reply(fault="stall", fault_after=0))).summary()
        if only in (None, "tool"):
            results["tool"] = (await product.tool(stops)).summary()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--only", choices=["model", "silent", "tool"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = asyncio.run(_measure(max(3, min(options.stops, MAX_STOPS)), options.only))
    if options.json:
        print(json.dumps(results))
        return
    for name, values in results.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.1f}" for key, value in values.items()))


if __name__ == "__main__":
    main()
