"""Turns beside bare Temporal workflows with the same activities, on the same dev server in the same run.

Usage: python -m benchmarks.turns [--turns N] [--json]

Both sides run in this process, alternating, so that the machine's mood hits both. The model and the sandbox answer at
once, so what is measured is the product's own cost: ledger, effects, outbox, dispatch and live wake-ups.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from benchmarks.bare_workflow import BareTurn, bare_call, bare_finish, bare_prepare
from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.agents import AgentConfig
from milepost.domain.content import Content
from milepost.domain.messages import AssistantMessage, FinishReason, TextPart, ToolCallPart
from milepost.domain.usage import Usage
from milepost.ports.ledger import LedgerTx
from milepost.ports.models import ModelCompleted, ModelHealth, ModelItem, ModelRequest, TextDelta
from milepost.ports.sandbox import OnOutput, Operation, Outcome, SandboxHealth, SandboxSpec
from milepost.services.contents import Contents
from milepost.services.sessions import OpenSession, SessionService
from milepost.services.turns import BeginTurn, TurnService
from milepost.services.workbench import Workbench
from milepost.storage import FileBlobStore, open_ledger, open_notifier, upgrade
from milepost.temporal.client import TemporalAddress, connect
from milepost.temporal.dev_server import DevServer
from milepost.temporal.exit import clean_exit
from milepost.temporal.starter import TemporalStarter
from milepost.tools import definitions
from workers.process import ExecutionParts, WorkerProcess, embedded_queues
from workers.runtime import runner

AT_ONCE = 16
LIMIT_SECONDS = 120


class InstantModel:
    """Asks for `tools` calls in its first round, then says it is done."""

    def __init__(self, tools: int) -> None:
        self.tools = tools

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        calls: list[ToolCallPart] = []
        if request.call_number == 1:
            arguments = '{"path": "a.txt"}'
            calls = [ToolCallPart(f"c{index}", "read_file", Content(arguments)) for index in range(self.tools)]
        yield TextDelta("done")
        finish = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        message = AssistantMessage((TextPart("done"), *calls))
        yield ModelCompleted(message, finish, Usage(10, 0, 1, 0), request.provider, request.model)

    async def check(self, provider: str) -> ModelHealth:
        return ModelHealth(provider, True, "instant")

    def validate(self, provider: str, model: str) -> None:
        return

    async def close(self) -> None:
        return


class InstantSandbox:
    boot = "instant"

    async def check(self) -> SandboxHealth:
        return SandboxHealth(True, "instant")

    async def open(self, spec: SandboxSpec) -> InstantSandbox:
        return self

    async def perform(
        self, effect_id: str, operation: Operation, on_output: OnOutput | None = None, *, boot: str | None = None
    ) -> Outcome:
        return Outcome(stdout=b"hello\n", detail={"size": 6})

    async def attach(
        self,
        effect_id: str,
        on_output: OnOutput | None = None,
        *,
        operation: Operation | None = None,
        boot: str | None = None,
    ) -> Outcome:
        return Outcome(stdout=b"hello\n", detail={"size": 6})

    async def kill(self, effect_id: str) -> None:
        return

    async def sessions(self) -> frozenset[str]:
        return frozenset()

    async def remove(self, session_id: str) -> None:
        return

    async def close(self) -> None:
        return


@dataclass
class Bench:
    client: Client
    sessions: SessionService
    turns: TurnService
    parts: ExecutionParts
    folder: Path
    database: sqlite3.Connection

    async def session(self) -> str:
        return (await self.sessions.open(OpenSession(str(self.folder)))).session_id

    async def turn(self, session_id: str) -> tuple[float, float]:
        """One turn: seconds of the accept, seconds from before the accept to the terminal event.

        Whether it has ended is looked up past the product, so that waiting costs no more than for a bare workflow.
        """
        subscription = self.parts.notifier.subscribe(session_id)
        start = time.perf_counter()
        begun = await self.turns.begin(BeginTurn(session_id, "go"))
        accepted = time.perf_counter() - start
        query = "SELECT 1 FROM turns WHERE turn_id = ? AND state <> 'running'"
        while not self.database.execute(query, (begun.turn.turn_id,)).fetchone():
            await subscription.wait(5)
        subscription.close()
        return accepted, time.perf_counter() - start

    async def bare(self, tools: int) -> float:
        """One bare workflow with the same activities: seconds from start to result."""
        start = time.perf_counter()
        await self.client.execute_workflow(
            BareTurn.run, tools, id=f"bare-{time.perf_counter_ns()}", task_queue="bare", request_eager_start=True
        )
        return time.perf_counter() - start

    async def plain_transaction(self) -> float:
        """One durable ledger transaction with a single row."""
        start = time.perf_counter()
        subject = f"bench-{time.perf_counter_ns()}"

        def body(tx: LedgerTx) -> None:
            tx.leases.acquire(subject, "bench", 1, 1)

        await self.parts.ledger.write(body)
        return time.perf_counter() - start


async def run(turns: int, tools: int) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        agent = AgentConfig("default", "instant", "instant")
        bench = await open_bench(stack, folder, InstantModel(tools), InstantSandbox(), agent)
        session = await bench.session()
        for _ in range(5):
            await bench.turn(session)
            await bench.bare(tools)
        accepts, product, bare, plain = [], [], [], []
        for _ in range(turns):
            accepted, whole = await bench.turn(session)
            accepts.append(accepted)
            product.append(whole)
            bare.append(await bench.bare(tools))
            plain.append(await bench.plain_transaction())
        sessions = [await bench.session() for _ in range(AT_ONCE)]
        rate = await _rate(turns, [lambda s=s: bench.turn(s) for s in sessions])  # type: ignore[misc]
        bare_rate = await _rate(turns, [lambda: bench.bare(tools) for _ in range(AT_ONCE)])
    return {
        "turn p50 ms": _ms(product, 50),
        "turn p99 ms": _ms(product, 99),
        "bare p50 ms": _ms(bare, 50),
        "bare p99 ms": _ms(bare, 99),
        "turn/bare p50": round(statistics.median(product) / statistics.median(bare), 2),
        "turns/s at 16": round(rate, 1),
        "bare/s at 16": round(bare_rate, 1),
        "accept p50 ms": _ms(accepts, 50),
        "one transaction p50 ms": _ms(plain, 50),
        "accept/transaction p50": round(statistics.median(accepts) / statistics.median(plain), 2),
    }


async def open_bench(
    stack: AsyncExitStack,
    folder: Path,
    model: InstantModel,
    sandbox: InstantSandbox,
    agent: AgentConfig,
    address: TemporalAddress | None = None,
) -> Bench:
    """A ledger on SQLite and one worker in this process, on the dev server at `address`, or on one of its own."""
    if address is None:
        server = DevServer(None, folder / "temporal.log")
        address = await server.start()
        stack.push_async_callback(server.stop)
    url = f"sqlite:///{folder / 'ledger.db'}"
    await upgrade(url)
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    stack.push_async_callback(ledger.close)
    clock, ids = SystemClock(), UuidIds()
    contents = Contents(FileBlobStore(folder / "blobs"))
    agents = {agent.agent_id: agent}
    workbench = Workbench(sandbox, lambda s: SandboxSpec(s.session_id, ledger.instance_id, s.workspace.path))
    parts = ExecutionParts(
        ledger, notifier, clock, contents, agents, model, workbench, definitions, ids.new("wrk"), "bench"
    )
    client = await connect(address)
    process = WorkerProcess(parts, client, TemporalStarter(client, ledger.instance_id), embedded_queues())
    await process.start()
    stack.push_async_callback(process.stop)
    activities = [bare_prepare, bare_call, bare_finish]
    worker = Worker(client, task_queue="bare", workflows=[BareTurn], activities=activities, workflow_runner=runner())
    await stack.enter_async_context(worker)
    sessions = SessionService(ledger, clock, ids, agents, "default")
    turns = TurnService(ledger, contents, clock, ids, agents, model.validate)
    database = sqlite3.connect(folder / "ledger.db", isolation_level=None)
    stack.callback(database.close)
    return Bench(client, sessions, turns, parts, folder, database)


async def _rate(total: int, lanes: list[Callable[[], Awaitable[object]]]) -> float:
    """Calls per second, each lane one after another."""
    each = max(1, total // len(lanes))

    async def lane(call: Callable[[], Awaitable[object]]) -> None:
        for _ in range(each):
            await call()

    start = time.perf_counter()
    await asyncio.gather(*(lane(call) for call in lanes))
    return each * len(lanes) / (time.perf_counter() - start)


def _ms(seconds: list[float], percentile: int) -> float:
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, len(ordered) * percentile // 100)], 1)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=60, help="turns of each kind, one after another (at most 500)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {}
    async with asyncio.timeout(LIMIT_SECONDS):
        for tools in (0, 3):
            results[f"{tools} tools"] = await run(min(options.turns, 500), tools)
    if options.json:
        print(json.dumps(results))
        return
    for name, figures in results.items():
        print(f"## {name}")
        for figure, value in figures.items():
            print(f"{figure:28} {value}")


if __name__ == "__main__":
    asyncio.run(main())
    clean_exit(0)
