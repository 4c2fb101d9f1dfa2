"""Every boundary of the turn times every part that can be killed: drawing kills, carrying them out, judging them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from milepost.domain.errors import MilepostError
from milepost.domain.turns import TurnState
from milepost.ports.ledger import Ledger
from milepost.storage import open_ledger, open_notifier
from milepost.temporal.client import connect
from tests.chaos import shapes, wire
from tests.chaos import turn as plan
from tests.chaos.client import ApiClient, Sample, Shown, background
from tests.chaos.evidence import Allowed, Evidence, Fault, Kind, faults, gather, lost
from tests.chaos.points import Boundary, Point, points
from tests.chaos.process import RECOVERING_SECONDS
from tests.chaos.processes import Process
from tests.chaos.shapes import VICTIMS, Apart, Embedded

REACH_SECONDS = 90.0
END_SECONDS = 120.0
LOOK_SECONDS = 0.25
LAST_WORD_SECONDS = 10.0
NOTHING = Allowed()
LONG_DEATH_SECONDS = RECOVERING_SECONDS + 1.5


@dataclass(frozen=True)
class Cell:
    """A place of the matrix."""

    database: str
    victim: str
    boundary: Boundary

    def __str__(self) -> str:
        return f"{self.database}, {self.victim} killed at {self.boundary}"


@dataclass(frozen=True)
class Kill:
    """One drawn kill: at `point`; the dead part is brought back after `dead` seconds."""

    cell: Cell
    number: int
    point: Point
    dead: float

    def __str__(self) -> str:
        return f"{self.cell} #{self.number} ({self.point}, dead for {self.dead:.1f} s)"


def cells(database: str) -> list[Cell]:
    """All cells of a database."""
    return [Cell(database, victim, boundary) for victim in VICTIMS[database] for boundary in Boundary]


def draw(cell: Cell, kills: int, seed: int) -> list[Kill]:
    """The cell's kills. Points are met in a drawn order, each once before any comes again."""
    rng = random.Random(f"{seed}/{cell}")
    drawn: list[Kill] = []
    order: list[Point] = []
    for number in range(kills):
        order = order or rng.sample(points(cell.boundary), len(points(cell.boundary)))
        dead = LONG_DEATH_SECONDS if rng.random() < 0.2 else rng.uniform(0, 1)
        drawn.append(Kill(cell, number, order.pop(), dead))
    return drawn


class World:
    """A running Milepost with one Session, a reader that follows it, and the undisturbed turn to compare with."""

    def __init__(self, shape: Embedded | Apart, ledger: Ledger, folder: Path) -> None:
        self.shape = shape
        self.ledger = ledger
        self.client = ApiClient(shape.home.data)
        self.workspace = folder
        self.session = ""
        self.shown = Shown()
        self.reference: Evidence | None = None
        self.number = 0
        self.patience = END_SECONDS
        self.judge = wire.Judge()

    async def open(self) -> None:
        """Open a Session."""
        plan.reset(self.workspace)
        self.session = await self.client.open_session(self.workspace)

    async def undisturbed(self) -> list[Fault]:
        """Run a turn that nothing happens to: it becomes the reference. Returns its faults."""
        turn = self.next_turn()
        await self.client.begin(self.session, turn, plan.REQUEST, plan.script())
        await self.ended(turn)
        self.reference = await gather(self.ledger, turn, self.workspace)
        return await self.faults(self.reference)

    async def faults(self, found: Evidence, allowed: Allowed = NOTHING) -> list[Fault]:
        """In what a turn is not as good as the undisturbed one."""
        assert self.reference is not None
        told = await faults(found, self.reference, allowed, self.judge)
        if found.turn.state is not TurnState.COMPLETED:
            told.append(Fault(Kind.TURN, f"its workflow says: {await self._last_word(found.turn.workflow_id)}"))
        return told

    async def _last_word(self, workflow_id: str) -> str:
        """How a workflow ended, as Temporal tells it."""
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                client = await connect(self.shape.temporal_address())
                return str(await client.get_workflow_handle(workflow_id).result())
        except (WorkflowFailureError, RPCError, MilepostError, TimeoutError) as error:
            return f"{error!r}, by {error.__cause__!r}, by {getattr(error.__cause__, '__cause__', None)!r}"

    def next_turn(self) -> str:
        """A fresh workspace, and the id of the next turn."""
        plan.reset(self.workspace)
        self.number += 1
        return f"turn-{self.session[-12:]}-{self.number}"

    async def ended(self, turn: str) -> None:
        """Wait until the turn has ended, for the ledger and for the reader. Raises AssertionError."""
        try:
            async with asyncio.timeout(self.patience):
                while await self._runs(turn) or turn not in self.shown.ended:
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            sees = "the reader saw its end" if turn in self.shown.ended else "the reader did not see an end"
            runs = "it runs" if await self._runs(turn) else "it has ended"
            raise AssertionError(f"the turn was not ended within {self.patience:g} s: {runs}, {sees}") from None

    async def _runs(self, turn: str) -> bool:
        try:
            return (await self.ledger.read(lambda tx: tx.turns.get(turn))).state is TurnState.RUNNING
        except MilepostError:
            return True  # not there yet, or the database is down


@asynccontextmanager
async def open_world(
    database: str, podman_root: Path, off: frozenset[str] = frozenset(), **more: Any
) -> AsyncIterator[World]:
    """A world over a running Milepost; `more` goes to its shape."""
    async with shapes.running(database, podman_root, off, **more) as shape:
        notifier = await open_notifier(shape.url)
        ledger = await open_ledger(shape.url, notifier)
        world = World(shape, ledger, shape.home.folder / "workspace")
        try:
            yield world
        finally:
            await world.client.close()
            await world.judge.close()
            await ledger.close()
            await notifier.close()


@asynccontextmanager
async def session(world: World) -> AsyncIterator[None]:
    """A new Session in the world, with its reader; the reference stays."""
    world.shown = Shown()
    world.number = 0
    await world.open()
    async with background(world.client.follow(world.session, world.shown)):
        yield


@dataclass
class Result:
    """What a kill led to; no fault means that nothing of it can be seen."""

    kill: Kill
    faults: list[Fault] = field(default_factory=list)
    retried: dict[str, int] = field(default_factory=dict)
    uncertain: int = 0
    seconds: float = 0.0


async def carry_out(world: World, kill: Kill, seed: int) -> Result:
    """Run one turn with one kill, and judge what is left."""
    started = shapes.now()
    result = Result(kill)
    try:
        async with asyncio.timeout(REACH_SECONDS + END_SECONDS + 60):
            await _disturbed(world, kill, random.Random(f"{seed}/{kill}"), result)
    except (AssertionError, TimeoutError, MilepostError) as error:
        result.faults.append(Fault(Kind.TURN, str(error) or type(error).__name__))
    result.seconds = shapes.now() - started
    return result


async def _disturbed(world: World, kill: Kill, rng: random.Random, result: Result) -> None:
    shape, point = world.shape, kill.point
    turn = world.next_turn()
    holders = shapes.holder(point.boundary, shape)
    runs = point.boundary is Boundary.TOOL_RUNS
    if not runs:
        for each in holders:
            each.arm(point)
    script = plan.script(point.position if runs else "")
    samples: list[Sample] = []
    begin = world.client.begin(world.session, turn, plan.REQUEST, script)
    async with background(begin, world.client.samples(turn, samples)) as (accepting, _):
        held = await (_line_written(world, point) if runs else _reached(holders))
        before = await world.ledger.read(lambda tx: tx.events.read(world.session, limit=100_000))
        revive = await shape.kill(kill.cell.victim, held or rng.choice(shape.workers), rng)
        for each in holders:
            if each.code is None:
                each.arm(None)
                each.go_on()
        early = rng.random() < 0.5
        if early:
            plan.open_gate(world.workspace)
        await asyncio.sleep(kill.dead)
        await revive()
        plan.open_gate(world.workspace)
        await accepting
        await world.ended(turn)
        await asyncio.gather(*(worker.ready() for worker in shape.workers))
    found = await gather(world.ledger, turn, world.workspace)
    result.faults += await world.faults(found, _allowed(kill))
    result.faults += lost(before, found.stored)
    result.faults += [Fault(Kind.READER, text) for text in world.shown.faults]
    world.shown.faults.clear()
    result.faults += untrue(samples, shape)
    result.retried, result.uncertain = found.attempts, len(found.uncertain)


def _allowed(kill: Kill) -> Allowed:
    # A call in an unknown state is what the loss of its worker means for an at-most-once call, and nothing else is.
    unknown = kill.point.position in plan.EDITS and kill.cell.victim in ("worker", "instance", "database")
    return Allowed(uncertain=frozenset({kill.point.position}) if unknown else frozenset())


def untrue(samples: list[Sample], shape: Embedded | Apart) -> list[Fault]:
    """Times at which a reader was told that the turn was worked on, long after the last worker had died."""
    for sample in samples:
        silent = sample.sent - shapes.last_death(shape, sample.sent)
        if sample.status == "working" and silent > RECOVERING_SECONDS and not shapes.alive_at(shape, sample.sent):
            return [Fault(Kind.STATUS, f"shown as working {silent:.1f} s after the last worker had died")]
    return []


async def _reached(holders: list[Process]) -> Process:
    async with asyncio.timeout(REACH_SECONDS):
        while True:
            for each in holders:
                if each.reached.is_set():
                    return each
                assert each.code is None, f"a process ended by itself with {each.code}:\n{each.words()}"
            await asyncio.sleep(0.02)


async def _line_written(world: World, point: Point) -> None:
    async with asyncio.timeout(REACH_SECONDS):
        while plan.COMMANDS[point.position] not in plan.traces(world.workspace).journal:
            await asyncio.sleep(0.02)


Progress = Callable[[Result], None]


async def run_cell(world: World, cell: Cell, kills: int, seed: int, progress: Progress) -> list[Result]:
    """The kills of a cell, each in a turn of one Session, up to the first with a fault: what follows proves nothing."""
    results = []
    async with session(world):
        if world.reference is None:
            found = await world.undisturbed()
            assert not found, f"the undisturbed turn: {found}"
        for kill in draw(cell, kills, seed):
            results.append(await carry_out(world, kill, seed))
            progress(results[-1])
            if results[-1].faults:
                break
    return results
