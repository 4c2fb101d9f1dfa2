"""Running the turn in a world of its own: undisturbed, or with a worker that dies at a point."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from temporalio.client import Client, WorkflowFailureError

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.turns import Turn, TurnState
from milepost.ports.ledger import Ledger
from milepost.sandboxes.podman.provider import PodmanProvider
from milepost.services.contents import Contents
from milepost.services.sessions import OpenSession, SessionService
from milepost.services.turns import BeginTurn, TurnService
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from tests.chaos import turn as plan
from tests.chaos.evidence import Evidence, died_at, gather, was_resumed
from tests.chaos.points import Point
from tests.chaos.processes import WorkerProcess, running
from tests.chaos.worker import AGENTS, Orders, open_gateway

COMPLETE_SECONDS = 120.0
LOOK_SECONDS = 0.3


@dataclass(frozen=True)
class Scenario:
    """How the first worker dies. With `outlives` the last command runs until the second worker has taken it over."""

    point: Point
    outlives: bool = False
    fencing: bool = True

    def __str__(self) -> str:
        more = [" that outlives the worker"] * self.outlives + [" without fencing"] * (not self.fencing)
        return "".join([str(self.point), *more])


@dataclass(frozen=True)
class World:
    """Everything one turn has to itself. `orders` lack the point."""

    ledger: Ledger
    client: Client
    turn: Turn
    workspace: Path
    orders: Orders

    async def evidence(self) -> Evidence:
        return await gather(self.ledger, self.turn.turn_id, self.workspace)

    async def completed(self, worker: WorkerProcess) -> None:
        """Wait until the turn has ended by itself, and then its workflow, which is the last to end."""
        try:
            async with asyncio.timeout(COMPLETE_SECONDS):
                while (await self.ledger.read(lambda tx: tx.turns.get(self.turn.turn_id))).state is TurnState.RUNNING:
                    await asyncio.sleep(LOOK_SECONDS)
                await self.client.get_workflow_handle(self.turn.workflow_id).result()
        except (TimeoutError, WorkflowFailureError) as error:
            raise AssertionError(f"the turn did not end by itself: {error!r}.\n{worker.words()}") from error

    async def taken_over(self, position: str) -> None:
        """Wait until a second attempt of an effect has begun."""
        async with asyncio.timeout(COMPLETE_SECONDS):
            while (await self.evidence()).effects[position].attempt < 2:
                await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def world(folder: Path, url: str, podman_root: Path, client: Client, *, gate: bool) -> AsyncIterator[World]:
    """A begun turn on a fresh ledger; nothing of it is left at the end, but files."""
    workspace, blobs = folder / "workspace", folder / "blobs"
    plan.prepare(workspace, gate=gate)
    blobs.mkdir()
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    gateway = open_gateway()
    sandboxes = PodmanProvider(podman_root, ledger.instance_id)
    clock, ids = SystemClock(), UuidIds()
    try:
        sessions = SessionService(ledger, clock, ids, AGENTS, "default")
        turns = TurnService(ledger, Contents(FileBlobStore(blobs)), clock, ids, AGENTS, gateway.validate)
        session = await sessions.open(OpenSession(str(workspace)))
        begun = await turns.begin(BeginTurn(session.session_id, plan.REQUEST, script=plan.script()))
        target = client.service_client.config.target_host
        log = str(folder / "worker.log")
        orders = Orders(url, str(blobs), str(podman_root), target, client.namespace, log)
        yield World(ledger, client, begun.turn, workspace, orders)
    finally:
        for found in await sandboxes.owned():
            await sandboxes.remove(found.session_id)
        await sandboxes.close()
        await gateway.close()
        await ledger.close()
        await notifier.close()


async def undisturbed(world: World, acting: asyncio.Semaphore) -> Evidence:
    """Run the turn with one worker that nothing happens to."""
    async with acting, running(world.orders) as worker:
        await world.completed(worker)
        await worker.leave()
    return await world.evidence()


async def killed(scenario: Scenario, world: World, acting: asyncio.Semaphore) -> Evidence:
    """Let the first worker die at the point, and a second one finish the turn.

    Asserts that the first one died there, and that the second one took up what was under way. `acting` bounds how many
    first workers run at a time; second ones wait most of their time for Temporal to notice the death.
    """
    async with acting, running(replace(world.orders, point=scenario.point)) as first:
        await first.died()
    died_at(scenario.point, await world.evidence())
    async with running(replace(world.orders, fencing=scenario.fencing)) as second:
        if scenario.outlives:
            await world.taken_over(plan.BASH)
            plan.open_gate(world.workspace)
        await world.completed(second)
        await second.leave()
    found = await world.evidence()
    if scenario.fencing:
        was_resumed(scenario.point, found)
    return found
