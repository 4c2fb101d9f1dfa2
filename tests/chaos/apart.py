"""Runs of several processes on one PostgreSQL: two APIs, workers that stop in order, freeze, or are newer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest

from milepost.bootstrap.system import release
from milepost.domain.effects import Effect
from milepost.domain.events import LATE_EVENTS
from milepost.domain.turns import TurnState
from milepost.ports.ledger import LedgerTx
from milepost.temporal.client import connect
from milepost.temporal.versioning import deployment_name
from tests.chaos import shapes
from tests.chaos import turn as plan
from tests.chaos.client import ApiClient, Sample, Shown, background
from tests.chaos.evidence import Evidence, Fault, Kind, gather
from tests.chaos.matrix import World, open_world, session
from tests.chaos.points import Boundary, Point, When
from tests.chaos.process import RECOVERING_SECONDS
from tests.chaos.processes import Process
from tests.chaos.shapes import Apart

WAIT_SECONDS = 90.0
HELD = "tool.2.1"
NEXT_RELEASE = "99.0.0"


@asynccontextmanager
async def world_of(podman_root: Path, off: frozenset[str] = frozenset(), **more: Any) -> AsyncIterator[World]:
    """A world of several processes with a Session and a reference turn."""
    async with open_world("postgresql", podman_root, off, **more) as world, session(world):
        undisturbed = await world.undisturbed()
        assert not undisturbed, undisturbed
        yield world


def shape_of(world: World) -> Apart:
    assert isinstance(world.shape, Apart)
    return world.shape


async def until(condition: Callable[[], Any], pause: float = 0.1) -> Any:
    """Wait for something that is awaited anew each time; return it."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not (found := await condition()):
            await asyncio.sleep(pause)
    return found


async def effect_at(world: World, turn: str, position: str) -> Effect | None:
    """The call at a position of a turn."""

    def body(tx: LedgerTx) -> Effect | None:
        found = tx.effects.page(world.session, turn_id=turn, state=None, limit=1000)
        return next((effect for effect in found if effect.spec.position == position), None)

    return await world.ledger.read(body)


async def owner(world: World, turn: str, position: str, attempt: int = 1) -> Process:
    """The worker that has dispatched the call at this position, for this attempt or a later one."""

    async def dispatched() -> Effect | None:
        found = await effect_at(world, turn, position)
        return found if found is not None and found.attempt >= attempt else None

    effect: Effect = await until(dispatched)
    pid = int((effect.worker or "").split("/")[1])
    return next(worker for worker in world.shape.workers if worker.pid == pid)


async def begin_held(world: World) -> str:
    """A turn whose command at `HELD` waits for its gate."""
    turn = world.next_turn()
    await world.client.begin(world.session, turn, plan.REQUEST, plan.script(HELD))

    async def runs() -> bool:
        return plan.COMMANDS[HELD] in plan.traces(world.workspace).journal

    await until(runs)
    return turn


async def judged(world: World, turn: str) -> tuple[Evidence, list[Fault]]:
    """The turn after its end, with its faults and those of the reader."""
    await world.ended(turn)
    found = await gather(world.ledger, turn, world.workspace)
    told = await world.faults(found)
    return found, told + [Fault(Kind.READER, text) for text in world.shown.faults]


async def two_apis(podman_root: Path) -> dict[str, Any]:
    """Turns begun, repeated, followed and stopped through two API processes."""
    async with world_of(podman_root) as world:
        one = world.client
        two = ApiClient(world.shape.home.data, await shape_of(world).serve_beside())
        beside = Shown()
        async with background(two.follow(world.session, beside)):
            turn = world.next_turn()
            first, again = await asyncio.gather(
                one.begin(world.session, turn, plan.REQUEST, plan.script()),
                two.begin(world.session, turn, plan.REQUEST, plan.script()),
            )
            _, told = await judged(world, turn)
            held = await begin_held(world)
            await two.post(f"/api/v1/turns/{held}/stop", {"reason": "through the other process"})
            await world.ended(held)
            third = world.next_turn()
            await two.begin(world.session, third, plan.REQUEST, plan.script())
            _, more = await judged(world, third)

            async def caught_up() -> bool:
                return beside.seqs == world.shown.seqs

            await until(caught_up)
        stopped = await world.ledger.read(lambda tx: tx.turns.get(held))
        await two.close()
        return {
            "faults": [*told, *more, *(Fault(Kind.READER, text) for text in beside.faults)],
            "created": sorted([first["created"], again["created"]]),
            "stopped": stopped.state is TurnState.STOPPED,
            "ended": {turn, held, third} <= beside.ended,
        }


async def drained(podman_root: Path) -> dict[str, Any]:
    """Workers that are told to stop: one whose command ends in time, then one whose command goes on."""
    async with world_of(podman_root, drain_seconds=3) as world:
        shape = shape_of(world)
        turn = await begin_held(world)
        leaver = await owner(world, turn, HELD)
        leaver.signal(signal.SIGTERM)

        async def serves_nothing() -> bool:
            live = await world.ledger.read(lambda tx: tx.workers.live(0))
            return any(not beat.queues and f"/{leaver.pid}/" in beat.worker for beat in live)

        await until(serves_nothing)
        plan.open_gate(world.workspace)
        code = await shape.drain(leaver)
        first, told = await judged(world, turn)
        await shape.work()
        turn = await begin_held(world)
        leaver = await owner(world, turn, HELD)
        leaver.signal(signal.SIGTERM)
        codes = [code, await shape.drain(leaver)]
        successor = await owner(world, turn, HELD, attempt=2)
        plan.open_gate(world.workspace)
        second, more = await judged(world, turn)
        return {
            "faults": [*told, *more],
            "codes": codes,
            "at once": await _told_twice(world),
            "attempts": [first.attempts, second.attempts],
            "handed on": successor.pid != leaver.pid,
        }


async def _told_twice(world: World) -> bool:
    """Whether a worker that is told to stop twice ends although its command goes on, which another one then has."""
    shape = shape_of(world)
    await shape.work()
    turn = await begin_held(world)
    leaver = await owner(world, turn, HELD)
    for _ in range(2):
        leaver.signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
    await shape.drain(leaver)
    await owner(world, turn, HELD, attempt=2)
    plan.open_gate(world.workspace)
    return not (await judged(world, turn))[1]


async def frozen(
    podman_root: Path, off: frozenset[str] = frozenset(), *, seconds: float = 4.0, shorten: bool = True
) -> list[Fault]:
    """A worker that is stopped with SIGSTOP at work, comes back after `seconds` and after its work was taken over."""
    async with world_of(podman_root, off, shorten=shorten) as world:
        for worker in world.shape.workers:
            worker.arm(Point(Boundary.SETTLE_TOOL, When.WHILE, HELD))
        turn = world.next_turn()
        await world.client.begin(world.session, turn, plan.REQUEST, plan.script())
        stopped = await owner(world, turn, HELD)
        await stopped.reached.wait()
        stopped.signal(signal.SIGSTOP)
        for worker in world.shape.workers:
            if worker is not stopped:
                worker.arm(None)
        since = shapes.now()
        found, told = await judged(world, turn)
        if found.attempts != {HELD: 2}:
            told.append(Fault(Kind.EFFECT, f"taken over: {found.attempts}"))
        await asyncio.sleep(max(0.0, since + seconds - shapes.now()))
        stopped.signal(signal.SIGCONT)
        stopped.go_on()
        await _came_back(world, stopped)
        after = await gather(world.ledger, turn, world.workspace)
        changed = [name for name in ("turn", "effects", "traces") if getattr(after, name) != getattr(found, name)]
        # Memory gets the turn in its own time, from whoever lives.
        late = {cls.TYPE for cls in LATE_EVENTS}
        if [item for item in after.stored if item.type not in late] != [
            item for item in found.stored if item.type not in late
        ]:
            changed.append("stored")
        told += [Fault(Kind.RESULT, f"what the worker did after it came back changed: {name}") for name in changed]
        told += await world.faults(after)
        following = world.next_turn()
        await world.client.begin(world.session, following, plan.REQUEST, plan.script())
        return told + (await judged(world, following))[1]


async def _came_back(world: World, worker: Process) -> None:
    """Wait until a worker is heard of again, and has had the time to end what it had begun."""
    since = int(shapes.now() * 1_000_000)

    async def heard() -> bool:
        live = await world.ledger.read(lambda tx: tx.workers.live(since))
        return any(f"/{worker.pid}/" in beat.worker for beat in live)

    await until(heard)
    await asyncio.sleep(2)


async def alone_and_frozen(podman_root: Path, *, seconds: float = 5.5, shorten: bool = True) -> list[Fault]:
    """The only worker is stopped with SIGSTOP: readers are told that nobody works on the turn; then it goes on."""
    limit = RECOVERING_SECONDS if shorten else 60.0
    async with world_of(podman_root, workers=1, shorten=shorten) as world:
        turn = await begin_held(world)
        (worker,) = world.shape.workers
        worker.signal(signal.SIGSTOP)
        since = shapes.now()
        samples: list[Sample] = []
        async with background(world.client.samples(turn, samples)):
            await asyncio.sleep(seconds)
        worker.signal(signal.SIGCONT)
        late = {sample.status for sample in samples if sample.sent - since > limit}
        plan.open_gate(world.workspace)
        _, told = await judged(world, turn)
        if late != {"recovering"}:
            told.append(Fault(Kind.STATUS, f"shown as {late} while the only worker was stopped"))
        return told


async def upgraded(podman_root: Path) -> dict[str, Any]:
    """A worker of a newer release comes while a turn is held on the old one: the turn ends where it began."""
    async with world_of(podman_root, workers=1) as world:
        shape = shape_of(world)
        before = await _current(world)
        turn = await begin_held(world)
        (old,) = shape.workers
        new = await shape.work(NEXT_RELEASE)

        async def is_current() -> bool:
            return await _current(world) == NEXT_RELEASE

        await until(is_current, 1)  # the server bounds how often it may be asked
        plan.open_gate(world.workspace)
        _, told = await judged(world, turn)
        old_ended = await _workers_of(world, turn)
        following = world.next_turn()
        await world.client.begin(world.session, following, plan.REQUEST, plan.script())
        _, more = await judged(world, following)
        return {
            "faults": [*told, *more],
            "before": before,
            "pinned": old_ended == {old.pid},
            "next": await _workers_of(world, following) == {new.pid},
            "code": await _stopped(shape, old),
        }


async def _stopped(shape: Apart, worker: Process) -> int:
    worker.signal(signal.SIGTERM)
    return await shape.drain(worker)


async def _current(world: World) -> str:
    client = await connect(shape_of(world).address)
    name = deployment_name(world.ledger.instance_id)
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=name)
    found = await client.workflow_service.describe_worker_deployment(request)
    return str(found.worker_deployment_info.routing_config.current_deployment_version.build_id)


async def _workers_of(world: World, turn: str) -> set[int]:
    effects = await world.ledger.read(lambda tx: tx.effects.page(world.session, turn_id=turn, state=None, limit=1000))
    return {int((effect.worker or "").split("/")[1]) for effect in effects}


THIS_RELEASE = release()
