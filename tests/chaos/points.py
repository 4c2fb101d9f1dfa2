"""Where a worker process kills itself, and the parts that make it do so.

They stand between the product and its own ledger, gateway and sandboxes, and change nothing but the moment of death.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.models import ModelCompleted, ModelGateway, ModelHealth, ModelItem, ModelRequest
from milepost.ports.sandbox import (
    Exec,
    OnOutput,
    Operation,
    Outcome,
    Sandbox,
    SandboxHealth,
    SandboxProvider,
    SandboxSpec,
)

T = TypeVar("T")

DELTAS_BEFORE_DEATH = 3
LOOK_SECONDS = 0.02
BEGIN_SECONDS = 60.0

_STEPS = {
    "Dispatcher._lease": "lease",
    "Dispatcher._deliver.<locals>.<lambda>": "deliver",
    "TurnActivities.prepare_turn.<locals>.body": "prepare",
    "TurnActivities.finish_turn.<locals>.body": "finish",
    "EffectJournal.enter.<locals>.body": "enter",
    "EffectJournal.settle.<locals>.body": "settle",
}
_DELTAS = "DeltaWriter._run.<locals>.body"


class When(StrEnum):
    """`before`: the transaction has done all its work and does not commit. `after`: it has committed."""

    BEFORE = "before"
    AFTER = "after"
    INSIDE = "inside"


@dataclass(frozen=True)
class Point:
    """One moment in the life of a turn.

    `step` is a transaction, in the order of a turn: `lease` and `deliver` (of the outbox item), `prepare`, `enter` and
    `settle` (of each effect), `finish`. With INSIDE it is the work between two of them: a `model` call that has
    streamed some text, a `tool` command that runs. `position` is the effect's (`model.1`, `tool.2.1`); for a command
    it is the line that it writes to the journal when it begins.
    """

    step: str
    when: When
    position: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.when, self.step, self.position) if part)

    def is_transaction(self, body: Callable[[LedgerTx], Any]) -> bool:
        """Whether this is the body of the point's transaction, known by its name and the effect it is about."""
        if self.when is When.INSIDE or _STEPS.get(body.__qualname__) != self.step:
            return False
        if not self.position:
            return True
        return bool(inspect.getclosurevars(body).nonlocals["spec"].position == self.position)


def die() -> NoReturn:
    """End this process like a power cut would: nothing is flushed, closed or told to anybody."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


@dataclass
class DoomedLedger:
    """Dies before or after the commit of the point's transaction. Counts the writes of streamed text."""

    ledger: Ledger
    point: Point
    streamed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def instance_id(self) -> str:
        return self.ledger.instance_id

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        doomed = self.point.is_transaction(body)

        def before(tx: LedgerTx) -> T:
            body(tx)
            die()

        value = await self.ledger.write(before if doomed and self.point.when is When.BEFORE else body)
        if doomed:
            die()
        if body.__qualname__ == _DELTAS:
            self.streamed.set()
        return value

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        return await self.ledger.read(body)

    async def check(self) -> None:
        await self.ledger.check()

    async def close(self) -> None:
        await self.ledger.close()


@dataclass
class DoomedGateway:
    """Dies in the middle of an answer, when a part of it lies in the delta log."""

    gateway: ModelGateway
    position: str
    streamed: asyncio.Event

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        doomed = self.position == f"model.{request.call_number}"
        self.streamed.clear()
        deltas = 0
        async with aclosing(self.gateway.stream(request)) as stream:
            async for item in stream:
                if doomed and isinstance(item, ModelCompleted):
                    raise AssertionError(f"the answer of {self.position} ended before the process was killed")
                yield item
                deltas += 1
                if doomed and deltas >= DELTAS_BEFORE_DEATH:
                    await self.streamed.wait()
                    die()

    async def check(self, provider: str) -> ModelHealth:
        return await self.gateway.check(provider)

    def validate(self, provider: str, model: str, script: str | None = None) -> None:
        self.gateway.validate(provider, model, script)

    async def close(self) -> None:
        await self.gateway.close()


@dataclass
class DoomedSandbox:
    """Dies when the command that writes `line` to the journal has written it, and so runs."""

    sandbox: Sandbox
    journal: Path
    line: str

    @property
    def boot(self) -> str:
        return self.sandbox.boot

    async def perform(
        self, effect_id: str, operation: Operation, on_output: OnOutput | None = None, *, boot: str | None = None
    ) -> Outcome:
        work = asyncio.ensure_future(self.sandbox.perform(effect_id, operation, on_output, boot=boot))
        if isinstance(operation, Exec) and f"echo {self.line} >>" in operation.command:
            async with asyncio.timeout(BEGIN_SECONDS):
                while self.line not in journal_lines(self.journal):
                    await asyncio.sleep(LOOK_SECONDS)
            die()
        return await work

    async def attach(
        self,
        effect_id: str,
        on_output: OnOutput | None = None,
        *,
        operation: Operation | None = None,
        boot: str | None = None,
    ) -> Outcome:
        return await self.sandbox.attach(effect_id, on_output, operation=operation, boot=boot)

    async def kill(self, effect_id: str) -> None:
        await self.sandbox.kill(effect_id)


@dataclass
class DoomedSandboxes:
    """Opens sandboxes that die with the point's command."""

    provider: SandboxProvider
    point: Point

    async def check(self) -> SandboxHealth:
        return await self.provider.check()

    async def open(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await self.provider.open(spec)
        return DoomedSandbox(sandbox, Path(spec.workspace_path) / JOURNAL, self.point.position)

    async def sessions(self) -> frozenset[str]:
        return await self.provider.sessions()

    async def remove(self, session_id: str) -> None:
        await self.provider.remove(session_id)

    async def close(self) -> None:
        await self.provider.close()


JOURNAL = "journal.txt"
"""The file of the workspace to which every command appends its own line: what really ran, told by nobody of ours."""


def journal_lines(path: Path) -> list[str]:
    """The lines of a journal; none if no command has run yet."""
    return path.read_text().split() if path.exists() else []
