"""The boundaries of a turn in the ledger, and the trap that holds a process at one of them.

The trap stands between the product and its own ledger and changes nothing but how long a moment lasts: a process that
comes to the boundary tells the test, and waits there until it is told to go on, or is killed.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from milepost.ports.ledger import Ledger, LedgerTx
from tests.chaos import turn as plan

T = TypeVar("T")


class Boundary(StrEnum):
    """The transactions of a turn in their order, and the one step between two of them that the ledger cannot see."""

    BEGIN = "begin"
    LEASE = "lease"
    DELIVER = "deliver"
    PREPARE = "prepare"
    ENTER_MODEL = "enter model"
    STREAM = "stream"
    SETTLE_MODEL = "settle model"
    ENTER_TOOL = "enter tool"
    TOOL_RUNS = "tool runs"
    SETTLE_TOOL = "settle tool"
    FINISH = "finish"


class When(StrEnum):
    """`before`: the transaction has done all its work and has not committed. `after`: it has committed."""

    BEFORE = "before"
    AFTER = "after"
    WHILE = "while"


@dataclass(frozen=True)
class Point:
    """One moment in the life of a turn; `position` is the effect's (`model.1`, `tool.2.1`)."""

    boundary: Boundary
    when: When
    position: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.when, self.boundary, self.position) if part)


def points(boundary: Boundary) -> list[Point]:
    """All moments of the turn at a boundary."""
    if boundary is Boundary.TOOL_RUNS:
        return [Point(boundary, When.WHILE, position) for position in plan.COMMANDS]
    positions: tuple[str, ...] = ("",)
    if boundary in (Boundary.ENTER_MODEL, Boundary.STREAM, Boundary.SETTLE_MODEL):
        positions = plan.MODELS
    elif boundary in (Boundary.ENTER_TOOL, Boundary.SETTLE_TOOL):
        positions = plan.TOOLS
    return [Point(boundary, when, position) for position in positions for when in (When.BEFORE, When.AFTER)]


_STEPS = {
    "TurnService.begin.<locals>.body": "begin",
    "Dispatcher._lease": "lease",
    "Dispatcher._deliver.<locals>.<lambda>": "deliver",
    "TurnActivities.prepare_turn.<locals>.body": "prepare",
    "EffectJournal.enter.<locals>.body": "enter",
    "DeltaWriter._run.<locals>.body": "stream",
    "EffectJournal.settle.<locals>.body": "settle",
    "TurnActivities.finish_turn.<locals>.body": "finish",
}


class Trap:
    """Holds this process at the point that the test armed it with; at any other it does nothing."""

    def __init__(self, wire: Connection) -> None:
        self._wire = wire
        self._lock = threading.Lock()
        self._point: Point | None = None
        self._positions: dict[str, str] = {}

    def tell(self, word: str) -> None:
        """Say something to the test."""
        with self._lock:
            self._wire.send(word)

    def hold(self, when: When, body: Callable[..., Any], value: object) -> None:
        """Wait if the body, which returned `value`, is that of the point's transaction."""
        with self._lock:
            while self._wire.poll():
                word = self._wire.recv()
                self._point = word if isinstance(word, Point) else None
            if self._point is None or self._point.when is not when or not self._is_at(self._point, body, value):
                return
            self._point = None
            self._wire.send("reached")
            while self._wire.recv() != "go":
                pass

    def learn(self, body: Callable[..., Any]) -> None:
        """Remember at which position of the turn an effect stands; streamed text names the effect only."""
        spec = inspect.getclosurevars(body).nonlocals.get("spec")
        if spec is not None:
            self._positions = {spec.effect_id: spec.position}

    def _is_at(self, point: Point, body: Callable[..., Any], value: object) -> bool:
        step, _, kind = point.boundary.partition(" ")
        if _STEPS.get(body.__qualname__) != step or (step == "lease" and not value):
            return False
        if not point.position:
            return True
        names = inspect.getclosurevars(body).nonlocals
        if step == "stream":
            return self._positions.get(names["self"]._call.effect_id) == point.position
        position: str = names["spec"].position
        return position == point.position and position.startswith(kind)


class TrappedLedger:
    """The ledger of a process with a trap."""

    def __init__(self, ledger: Ledger, trap: Trap) -> None:
        self._ledger = ledger
        self._trap = trap

    @property
    def instance_id(self) -> str:
        return self._ledger.instance_id

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        if body.__qualname__ not in _STEPS:
            return await self._ledger.write(body)
        self._trap.learn(body)

        def watched(tx: LedgerTx) -> T:
            value = body(tx)
            self._trap.hold(When.BEFORE, body, value)
            return value

        value = await self._ledger.write(watched)
        self._trap.hold(When.AFTER, body, value)
        return value

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        return await self._ledger.read(body)

    async def check(self) -> None:
        await self._ledger.check()

    async def close(self) -> None:
        await self._ledger.close()
