"""The boundaries of a turn in the ledger, and the trap that holds a process at one of them.

The trap stands between the product and its own ledger and changes nothing but how long a moment lasts: a process that
comes to the boundary tells the test, and waits there until it is told to go on, or is killed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

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
    """`before`: the transaction has done all its work and has not committed. `after`: it has committed. `while`: the
    step between two transactions is under way; of a settlement, the outcome is there and nothing of it is written."""

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

    @property
    def place(self) -> tuple[Boundary, str]:
        """Which transaction it is."""
        return self.boundary, self.position


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


MAX_KNOWN = 1000


class _Spy:
    """A repository of a transaction that notes what is asked of it."""

    def __init__(self, name: str, repository: Any, calls: list[Call]) -> None:
        self._name = name
        self._repository = repository
        self._calls = calls

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._repository, method)

        def noted(*arguments: Any, **named: Any) -> Any:
            result = found(*arguments, **named)
            self._calls.append(Call(f"{self._name}.{method}", arguments, result))
            return result

        return noted


@dataclass(frozen=True)
class Call:
    """What a transaction asked of a repository, and got."""

    name: str
    arguments: tuple[Any, ...]
    result: Any


class _SpyTx:
    """A transaction that notes what is asked of the repositories which tell boundaries apart."""

    def __init__(self, tx: LedgerTx) -> None:
        self._tx = tx
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tx, name)
        return _Spy(name, found, self.calls) if name in ("turns", "outbox", "effects", "deltas") else found


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

    def hold(self, when: When, calls: list[Call]) -> None:
        """Wait if these are the calls of the point's transaction."""
        self.hold_at(when, self._place(calls))

    def hold_at(self, when: When, place: tuple[Boundary, str] | None) -> None:
        """Wait if this is the point."""
        with self._lock:
            while self._wire.poll():
                word = self._wire.recv()
                self._point = word if isinstance(word, Point) else None
            if self._point is None or self._point.when is not when or place != self._point.place:
                return
            self._point = None
            self._wire.send("reached")
            while self._wire.recv() != "go":
                pass

    def learn(self, calls: list[Call]) -> None:
        """Remember at which positions of the turn effects stand; later calls name the effect only."""
        for call in calls:
            if call.name == "effects.dispatch":
                if len(self._positions) > MAX_KNOWN:
                    self._positions.clear()
                self._positions[call.arguments[0].effect_id] = call.arguments[0].position

    def _place(self, calls: list[Call]) -> tuple[Boundary, str] | None:
        """Which boundary of the turn a transaction is, known by what it does: the names in the code may change."""
        found = {call.name: call for call in calls}
        if "turns.finish" in found:
            return Boundary.FINISH, ""
        if "turns.add" in found:
            return Boundary.BEGIN, ""
        if "turns.claim" in found:
            return Boundary.PREPARE, ""
        if "outbox.lease" in found and found["outbox.lease"].result:
            return Boundary.LEASE, ""
        if "turns.mark_dispatched" in found:
            return Boundary.DELIVER, ""
        if "effects.dispatch" in found:
            position: str = found["effects.dispatch"].arguments[0].position
            return (Boundary.ENTER_MODEL if position.startswith("model") else Boundary.ENTER_TOOL), position
        if "effects.settle" in found:
            position = self._positions.get(found["effects.settle"].arguments[0], "")
            return (Boundary.SETTLE_MODEL if position.startswith("model") else Boundary.SETTLE_TOOL), position
        if "deltas.add" in found:
            return Boundary.STREAM, self._positions.get(found["deltas.add"].arguments[1][0].effect_id, "")
        return None


class TrappedLedger:
    """The ledger of a process with a trap."""

    def __init__(self, ledger: Ledger, trap: Trap) -> None:
        self._ledger = ledger
        self._trap = trap

    @property
    def instance_id(self) -> str:
        return self._ledger.instance_id

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        calls: list[Call] = []

        def watched(tx: LedgerTx) -> T:
            spy = _SpyTx(tx)
            value = body(cast(LedgerTx, spy))
            calls[:] = spy.calls  # of the last time, if it runs more than once
            self._trap.learn(calls)
            self._trap.hold(When.BEFORE, calls)
            return value

        value = await self._ledger.write(watched)
        self._trap.hold(When.AFTER, calls)
        return value

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        return await self._ledger.read(body)

    async def check(self) -> None:
        await self._ledger.check()

    async def close(self) -> None:
        await self._ledger.close()
