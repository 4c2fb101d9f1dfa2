"""A real Temporal dev server, one per test run and process, and stacks of real workers on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.agents import AgentConfig
from milepost.domain.environments import Environment
from milepost.domain.turns import Turn, TurnState
from milepost.ports.hooks import Hooks, NoHooks
from milepost.ports.ledger import Ledger
from milepost.ports.models import ModelGateway
from milepost.ports.notifier import Notifier
from milepost.ports.prices import NoPrices, Prices
from milepost.ports.sandbox import SandboxProvider, SandboxSpec
from milepost.ports.snapshots import Snapshots
from milepost.ports.tools import CustomTools, NoCustomTools
from milepost.sandboxes.detection import FolderDetector
from milepost.services.contents import Contents
from milepost.services.environment_gate import EnvironmentGate
from milepost.services.environments import EnvironmentRules, EnvironmentService
from milepost.services.history import HistoryService
from milepost.services.memory_stores import MemoryStores
from milepost.services.sessions import OpenSession, SessionService
from milepost.services.stops import StopWatch
from milepost.services.turns import BeginTurn, TurnService, TurnView
from milepost.services.workbench import Workbench
from milepost.temporal.client import TemporalAddress, connect
from milepost.temporal.dev_server import DevServer
from milepost.temporal.starter import TemporalStarter
from milepost.tools import definitions
from workers.process import ExecutionParts, WorkerProcess, embedded_queues
from workers.runtime import WorkerSettings


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalAddress]:
    """A dev server of the product's own making. Its loop lives in a thread, since tests have a loop each."""
    folder = tmp_path_factory.mktemp("temporal")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = DevServer(None, folder / "temporal.log")
    address = asyncio.run_coroutine_threadsafe(server.start(), loop).result(60)
    yield address
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@dataclass
class Stack:
    """The execution side over one ledger, with the services that tests drive it by."""

    parts: ExecutionParts
    client: Client
    sessions: SessionService
    turns: TurnService
    history: HistoryService
    stops: StopWatch
    environments: EnvironmentService
    starter: TemporalStarter

    @asynccontextmanager
    async def worker(self, grace: float = 5.0) -> AsyncIterator[WorkerProcess]:
        """A worker process in this one; at its end, work that does not end within `grace` seconds is cut off."""
        settings = WorkerSettings(graceful_shutdown=timedelta(seconds=grace))
        process = WorkerProcess(
            self.parts, self.client, self.starter, embedded_queues(), settings, reconcile_seconds=0.5
        )
        await process.start()
        try:
            yield process
        finally:
            await process.stop()

    async def open(self, folder: Path) -> str:
        return (await self.sessions.open(OpenSession(str(folder)))).session_id

    async def send(self, session_id: str, text: str = "do it", script: str | None = None, **more: str) -> TurnView:
        return await self.turns.begin(BeginTurn(session_id, text, script=script, **more))

    async def settled(self, session_id: str, seconds: float = 40) -> Environment:
        """Wait until the Session's environment is Ready or has failed, woken by the ledger."""
        subscription = self.parts.notifier.subscribe(session_id)
        try:
            async with asyncio.timeout(seconds):
                while not (found := await self.environments.get(session_id)).state.settled:
                    await subscription.wait(1)
                return found
        finally:
            subscription.close()

    async def ended(self, turn_id: str, seconds: float = 40) -> Turn:
        """Wait for the terminal state, woken by the ledger."""
        session_id = (await self.turns.get(turn_id)).turn.session_id
        subscription = self.parts.notifier.subscribe(session_id)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    turn = (await self.turns.get(turn_id)).turn
                    if turn.state is not TurnState.RUNNING:
                        return turn
                    await subscription.wait(1)
        finally:
            subscription.close()


async def build_stack(
    ledger: Ledger,
    notifier: Notifier,
    blobs: object,
    gateway: ModelGateway,
    sandboxes: SandboxProvider | None,
    address: TemporalAddress,
    agents: dict[str, AgentConfig] | None = None,
    custom_tools: CustomTools | None = None,
    prices: Prices | None = None,
    hooks: Hooks | None = None,
    snapshots: Snapshots | None = None,
    memory: MemoryStores | None = None,
    rules: EnvironmentRules | None = None,
) -> Stack:
    clock, ids = SystemClock(), UuidIds()
    contents = Contents(blobs)  # type: ignore[arg-type]
    agents = agents or {"default": AgentConfig("default", "scripted", "demo")}
    environments = EnvironmentService(ledger, clock, FolderDetector(), rules or EnvironmentRules(lambda image: None))
    workbench = Workbench(
        sandboxes,
        lambda session: SandboxSpec(session.session_id, ledger.instance_id, session.workspace.path),
        EnvironmentGate(ledger, environments),
    )
    client = await connect(address)
    parts = ExecutionParts(
        ledger=ledger,
        notifier=notifier,
        clock=clock,
        contents=contents,
        agents=agents,
        gateway=gateway,
        workbench=workbench,
        tools=definitions,
        worker=ids.new("wrk"),
        host="test-host",
        prices=prices or NoPrices(),
        custom_tools=custom_tools or NoCustomTools(),
        hooks=hooks or NoHooks(),
        snapshots=snapshots,
        memory=memory,
    )
    return Stack(
        parts,
        client,
        SessionService(ledger, clock, ids, agents, "default"),
        TurnService(ledger, contents, clock, ids, agents, gateway.validate),
        HistoryService(ledger),
        StopWatch(ledger, notifier),
        environments,
        TemporalStarter(client, ledger.instance_id),
    )
