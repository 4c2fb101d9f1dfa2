"""Turns beside other durable agents, in one run: same steps, same machine, same Temporal dev server, instant models.

Usage: python -m benchmarks.peers [--turns N] [--json], in an environment of its own: see requirements-peers.txt.

Temporal peers: the SDK's plugin for the OpenAI Agents SDK and pydantic-ai's Temporal agent; the dev server keeps its
state in memory for all three, and the ledger's commits reach the disk. For orientation, without Temporal: LangGraph
with its SQLite and PostgreSQL checkpointers in their durable mode, DBOS on SQLite. One turn of each after another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from benchmarks import peer_local, peer_openai_agents, peer_pydantic_ai
from benchmarks.turns import InstantModel, InstantSandbox, open_bench
from milepost.bootstrap.system import release
from milepost.domain.agents import AgentConfig
from milepost.temporal.client import TemporalAddress
from milepost.temporal.dev_server import DevServer
from milepost.temporal.exit import clean_exit
from tests.support.postgres_server import PostgresServer, find_binaries, running_server

os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")  # it has nowhere to send traces to, and would say so

LIMIT_SECONDS = 1_200
WARM = 5
Turn = Callable[[], Awaitable[object]]


async def _temporal_peer(stack: AsyncExitStack, address: TemporalAddress, name: str, tools: int) -> Turn:
    """A worker of the peer on a queue of its own; starting a turn is as eager as ours."""
    if name == "openai_agents":
        model = peer_openai_agents.InstantModel()
        model.tools = tools
        plugin, kind = peer_openai_agents.plugin(model), peer_openai_agents.OpenAIAgentsTurn
        activities = [peer_openai_agents.read_file]
    else:
        plugin, kind, activities = peer_pydantic_ai.plugin(), peer_pydantic_ai.PydanticAITurn, []
    client = await Client.connect(address.target, namespace=address.namespace, plugins=[plugin])
    queue = f"{name}-{tools}"
    worker = Worker(client, task_queue=queue, workflows=[kind], activities=activities, build_id=release())
    await stack.enter_async_context(worker)
    numbers = count(1)

    async def turn() -> object:
        peer_pydantic_ai.Asked.tools = tools
        result = await client.execute_workflow(
            kind.run, "go", id=f"{queue}-{next(numbers)}", task_queue=queue, request_eager_start=True
        )
        assert result == "done", result
        return result

    return turn


async def _contenders(
    stack: AsyncExitStack, folder: Path, address: TemporalAddress, postgres: PostgresServer | None, tools: int
) -> dict[str, Turn]:
    own = folder / f"milepost-{tools}"
    own.mkdir()
    agent = AgentConfig("default", "instant", "instant")
    bench = await open_bench(stack, own, InstantModel(tools), InstantSandbox(), agent, address)
    session = await bench.session()
    found: dict[str, Turn] = {"milepost": lambda: bench.turn(session)}
    for name in ("openai_agents", "pydantic_ai"):
        found[name] = await _temporal_peer(stack, address, name, tools)
    found["langgraph, sqlite"] = await peer_local.langgraph_sqlite(stack, folder, tools)
    if postgres is not None:
        url = postgres.url(postgres.create_database())
        found["langgraph, postgresql"] = await peer_local.langgraph_postgres(stack, url, tools)
    return found


async def run(turns: int) -> dict[str, dict[str, dict[str, float]]]:
    results: dict[str, dict[str, dict[str, float]]] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="milepost-peers-")))
        server = DevServer(None, folder / "temporal.log")
        address = await server.start()
        stack.push_async_callback(server.stop)
        binaries = find_binaries()
        postgres = None if binaries is None else stack.enter_context(running_server(binaries, folder.parent))
        dbos = peer_local.dbos(stack, folder)
        for tools in (0, 3):
            async with AsyncExitStack() as inner:
                contenders = await _contenders(inner, folder, address, postgres, tools)
                contenders["dbos, sqlite"] = dbos(tools)
                results[f"{tools} tools"] = await _measured(contenders, turns)
    return results


async def _measured(contenders: dict[str, Turn], turns: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM + turns):
        for name, turn in contenders.items():
            start = time.perf_counter()
            await turn()
            if number >= WARM:
                times[name].append(1000 * (time.perf_counter() - start))
    ours = statistics.median(times["milepost"])
    return {
        name: {
            "p50 ms": round(statistics.median(found), 1),
            "p95 ms": round(statistics.quantiles(found, n=20)[18], 1),
            "p50 / milepost": round(statistics.median(found) / ours, 2),
        }
        for name, found in times.items()
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=40, help="turns of each kind (at most 500)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    async with asyncio.timeout(LIMIT_SECONDS):
        results = await run(min(max(options.turns, 2), 500))
    if options.json:
        print(json.dumps(results))
        return
    for title, rows in results.items():
        print(f"| {title} | p50 ms | p95 ms | p50 / milepost |\n|---|---|---|---|")
        for name, figures in rows.items():
            print(f"| {name} | {' | '.join(str(value) for value in figures.values())} |")


if __name__ == "__main__":
    asyncio.run(main())
    clean_exit(0)
