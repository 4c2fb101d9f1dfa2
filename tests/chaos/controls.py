"""Runs that must fail: with one guarantee switched off in the test's processes, the suite has to notice."""

from __future__ import annotations

import asyncio
from pathlib import Path

from temporalio.client import WorkflowFailureError

from milepost.contracts.activities import TurnInput
from milepost.contracts.naming import SESSION_TURN_WORKFLOW, TURNS_QUEUE, queue_name
from milepost.temporal.client import connect
from tests.chaos import turn as plan
from tests.chaos.client import background
from tests.chaos.evidence import Fault, Kind, gather
from tests.chaos.matrix import END_SECONDS, Cell, Kill, World, carry_out, open_world, session
from tests.chaos.points import Boundary, Point, When

LOST_SECONDS = 12.0
TWIN_SECONDS = 60.0
HELD = "tool.1.2"


async def kill_without(
    guarantee: str, boundary: Boundary, point: Point, podman_root: Path, patience: float = END_SECONDS
) -> list[Fault]:
    """The faults of one kill of an instance on SQLite whose processes do not keep the guarantee."""
    async with open_world("sqlite", podman_root, frozenset({guarantee})) as world, session(world):
        undisturbed = await world.undisturbed()
        assert not undisturbed, undisturbed
        world.patience = patience
        kill = Kill(Cell("sqlite", "instance", boundary), 0, point, 0.2)
        return (await carry_out(world, kill, 1)).faults


async def without_outbox(podman_root: Path) -> list[Fault]:
    """Killed after the commit of a turn that nobody will start."""
    return await kill_without("outbox", Boundary.BEGIN, Point(Boundary.BEGIN, When.AFTER), podman_root, LOST_SECONDS)


async def without_fencing(podman_root: Path) -> list[Fault]:
    """Killed while a command runs that the next attempt does not know of."""
    point = Point(Boundary.TOOL_RUNS, When.WHILE, HELD)
    return await kill_without("fencing", Boundary.TOOL_RUNS, point, podman_root)


async def twin(podman_root: Path, off: frozenset[str] = frozenset()) -> list[Fault]:
    """The faults of a turn for which a second workflow run is made, as a Reset in Temporal's UI makes one.

    Nothing is killed and nothing lost, so that the call at hand may not be attempted again.
    """
    async with open_world("sqlite", podman_root, off) as world, session(world):
        undisturbed = await world.undisturbed()
        assert not undisturbed, undisturbed
        turn = world.next_turn()
        await world.client.begin(world.session, turn, plan.REQUEST, plan.script(HELD))
        async with background(_second_run(world, turn)) as (second,):
            async with asyncio.timeout(TWIN_SECONDS):
                while not (second.done() or await _attempted_again(world, turn)):
                    await asyncio.sleep(0.1)
            plan.open_gate(world.workspace)
            await world.ended(turn)
        found = await gather(world.ledger, turn, world.workspace)
        told = await world.faults(found)
        if HELD in found.attempts:
            told.append(Fault(Kind.EFFECT, f"attempted again although nothing was lost: {found.attempts}"))
        return told


async def _second_run(world: World, turn: str) -> None:
    """Start another workflow for a turn whose own is at work, and wait until it is refused."""
    async with asyncio.timeout(TWIN_SECONDS):
        while plan.COMMANDS[HELD] not in plan.traces(world.workspace).journal:
            await asyncio.sleep(0.05)
    client = await connect(world.shape.temporal_address())
    handle = await client.start_workflow(
        SESSION_TURN_WORKFLOW,
        TurnInput(turn, world.session, world.ledger.instance_id),
        id=f"{turn}/again",
        task_queue=queue_name(world.ledger.instance_id, TURNS_QUEUE),
    )
    try:
        await handle.result()
    except WorkflowFailureError:
        return
    raise AssertionError("a second run worked on the turn to its end")


async def _attempted_again(world: World, turn: str) -> bool:
    return HELD in (await gather(world.ledger, turn, world.workspace)).attempts
