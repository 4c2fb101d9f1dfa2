"""Holding a turn at the edge of one of its ledger transactions, for as long as a test wants."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from milepost.ports.ledger import Ledger, LedgerTx

T = TypeVar("T")

_STEPS = {
    "TurnActivities.prepare_turn.<locals>.body": "prepare",
    "TurnActivities.finish_turn.<locals>.body": "finish",
    "EffectJournal.enter.<locals>.body": "enter",
    "EffectJournal.settle.<locals>.body": "settle",
}


@dataclass(frozen=True)
class Edge:
    """`before` or `after` the transaction `step` of a turn; `position` is the effect's, for `enter` and `settle`."""

    when: str
    step: str
    position: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.when, self.step, self.position) if part)


EDGES = [
    Edge(when, step, position)
    for step, position in [
        ("prepare", ""),
        ("enter", "model.1"),
        ("settle", "model.1"),
        ("enter", "tool.1.0"),
        ("settle", "tool.1.0"),
        ("enter", "model.2"),
        ("settle", "model.2"),
        ("finish", ""),
    ]
    for when in ("before", "after")
]
"""Every edge of a turn with one tool call, in order."""


@dataclass
class Hold:
    """One turn held once: `reached` when it is there, it goes on after `release`."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def pause(self) -> None:
        self.reached.set()
        await self.release.wait()


class HeldLedger:
    """A worker's ledger that holds turns where a test asks for it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._holds: dict[tuple[str, Edge], Hold] = {}

    def hold(self, turn_id: str, edge: Edge) -> Hold:
        return self._holds.setdefault((turn_id, edge), Hold())

    @property
    def instance_id(self) -> str:
        return self._ledger.instance_id

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        await self._pause("before", body)
        value = await self._ledger.write(body)
        await self._pause("after", body)
        return value

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        return await self._ledger.read(body)

    async def check(self) -> None:
        await self._ledger.check()

    async def close(self) -> None:
        await self._ledger.close()

    async def _pause(self, when: str, body: Callable[[LedgerTx], Any]) -> None:
        step = _STEPS.get(body.__qualname__)
        if step is None:
            return
        known = inspect.getclosurevars(body).nonlocals
        about = known["spec"] if "spec" in known else known["params"]
        hold = self._holds.get((about.turn_id, Edge(when, step, getattr(about, "position", ""))))
        if hold is not None:
            await hold.pause()
