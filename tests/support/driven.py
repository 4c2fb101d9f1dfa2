"""Turns driven through the real services and activities in this process, without Temporal: bulk for long Sessions.

What is stored and read is what a real turn stores and reads; only the workflow's part, which is to call these steps in
their order, is done here. The model and the sandbox answer at once.
"""

from __future__ import annotations

import random
import sqlite3
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection
from temporalio.testing import ActivityEnvironment

from activities import conversation
from activities.patience import PatientLedger
from milepost.bootstrap.system import UuidIds
from milepost.contracts.activities import (
    CallModelParams,
    CallModelResult,
    FinishParams,
    ModelOutcome,
    PrepareParams,
    RunToolParams,
)
from milepost.domain.agents import AgentConfig
from milepost.domain.content import Content
from milepost.domain.events import AgentStarted, ToolFinished
from milepost.domain.messages import AssistantMessage, FinishReason, TextPart, ToolCallPart
from milepost.domain.tools import Approval
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from milepost.ledger.codec import canonical_bytes, decode_event, encode
from milepost.ports.checkpoints import CheckpointStore
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.ports.models import ModelCompleted, ModelGateway, ModelHealth, ModelItem, ModelRequest, TextDelta
from milepost.ports.notifier import Notifier
from milepost.ports.sandbox import Exec, OnOutput, Operation, Outcome, SandboxHealth, SandboxSpec
from milepost.ports.tools import CustomTools, NoCustomTools
from milepost.ports.workflows import EnvironmentStart, TurnStart, WorkflowState
from milepost.services.checkpoints import CheckpointSettings
from milepost.services.contents import Contents
from milepost.services.dispatch import Dispatcher
from milepost.services.history import HistoryService
from milepost.services.memory_stores import MemoryStores
from milepost.services.sessions import OpenSession, SessionService
from milepost.services.turns import BeginTurn, TurnService
from milepost.services.workbench import Workbench
from milepost.services.workspaces import WorkspaceGuard
from milepost.storage import FileBlobStore, packing
from milepost.storage.blob_files import blob_files
from milepost.tools import definitions
from workers.process import ExecutionParts, turn_steps

T = TypeVar("T")

WORDS = [f"{first}{last}" for first in ("src", "test", "line", "warn", "mod", "obj") for last in range(200)]
SECOND_US = 1_000_000
AGENT = "default"


class SteppingClock:
    """A clock that goes on by one second at each look."""

    def __init__(self) -> None:
        self._now = 1_700_000_000 * SECOND_US

    def now(self) -> int:
        self._now += SECOND_US
        return self._now


def log_text(chosen: random.Random, size: int) -> str:
    """About `size` characters of lines as tools print them; no two the same."""
    lines: list[str] = []
    left = size
    while left > 0:
        line = f"{chosen.randrange(10**6):06} {' '.join(chosen.choices(WORDS, k=9))}\n"
        lines.append(line)
        left -= len(line)
    return "".join(lines)


@dataclass
class Unique:
    """Distinct values: their bytes, and these compressed one by one as in the ledger, but without its dictionary."""

    plain: int = 0
    compressed: int = 0

    def add(self, payload: bytes) -> None:
        self.plain += len(payload)
        self.compressed += len(zlib.compress(payload, packing.LEVEL))


class OneCallModel:
    """Asks for a command while `calls` is set, else says what it found. `said` gets what it wrote."""

    def __init__(self, chosen: random.Random, said: Unique) -> None:
        self._chosen = chosen
        self._said = said
        self.calls = True

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        number = self._chosen.randrange(10**12)
        if self.calls:
            arguments = f'{{"command": "make target-{number}"}}'
            message = AssistantMessage((ToolCallPart(f"call-{number}", "bash", Content(arguments)),))
            self._said.add(arguments.encode())
            yield ModelCompleted(message, FinishReason.TOOL_CALLS, Usage(10, 0, 5, 0), request.provider, request.model)
            return
        text = f"Done: {log_text(self._chosen, 200)}"
        self._said.add(text.encode())
        yield TextDelta(text)
        message = AssistantMessage((TextPart(text),))
        yield ModelCompleted(message, FinishReason.STOP, Usage(10, 0, 5, 0), request.provider, request.model)

    async def check(self, provider: str) -> ModelHealth:
        return ModelHealth(provider, True, "instant")

    def validate(self, provider: str, model: str, script: str | None = None) -> None:
        return

    async def close(self) -> None:
        return


class PrintingSandbox:
    """Every command prints `size()` characters that no other command printed, and which `said` gets."""

    boot = "instant"

    def __init__(self, chosen: random.Random, size: Callable[[], int], said: Unique) -> None:
        self._chosen = chosen
        self._size = size
        self.says: Callable[[], str] | None = None
        self._said = said

    async def check(self) -> SandboxHealth:
        return SandboxHealth(True, "instant")

    async def open(self, spec: SandboxSpec) -> PrintingSandbox:
        return self

    async def perform(
        self, effect_id: str, operation: Operation, on_output: OnOutput | None = None, *, boot: str | None = None
    ) -> Outcome:
        assert isinstance(operation, Exec)
        said = self.says() if self.says is not None else log_text(self._chosen, self._size())
        text = said.encode()
        self._said.add(text)
        return Outcome(exit_code=0, stdout=text)

    async def attach(self, effect_id: str, on_output: OnOutput | None = None, **_: Any) -> Outcome:
        raise AssertionError("nothing is ever lost here")

    async def kill(self, effect_id: str) -> None:
        return

    async def sessions(self) -> frozenset[str]:
        return frozenset()

    async def remove(self, session_id: str) -> None:
        return

    async def close(self) -> None:
        return


class _Accepting:
    """A workflow starter for a driver that does the workflows' part."""

    async def start_turn(self, start: TurnStart) -> None:
        return

    async def start_environment(self, start: EnvironmentStart) -> None:
        return

    async def answer(self, workflow_id: str, approval_id: str) -> None:
        return

    async def cancel(self, workflow_id: str) -> None:
        return

    async def state(self, workflow_id: str) -> WorkflowState:
        return WorkflowState.RUNNING

    async def check(self) -> None:
        return


@dataclass
class Work:
    """What SQLite did for some transactions: instructions of its virtual machine, the same at every repetition."""

    instructions: int = 0


@dataclass
class CountedLedger:
    """A ledger on SQLite that counts the work of its transactions while `work` is set."""

    ledger: Ledger
    work: Work | None = None
    instance_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.instance_id = self.ledger.instance_id

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        return await self.ledger.write(self._counted(body))

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        return await self.ledger.read(self._counted(body))

    async def check(self) -> None:
        await self.ledger.check()

    async def close(self) -> None:
        await self.ledger.close()

    def _counted(self, body: Callable[[LedgerTx], T]) -> Callable[[LedgerTx], T]:
        work = self.work
        if work is None:
            return body

        def counted(tx: LedgerTx) -> T:
            connection: Connection = tx.connection  # type: ignore[attr-defined]
            driver: Any = connection.connection.driver_connection

            def step() -> int:
                work.instructions += 1
                return 0

            driver.set_progress_handler(step, 1)
            try:
                return body(tx)
            finally:
                driver.set_progress_handler(None, 0)

        return counted


class Driver:
    """One instance over `ledger` whose turns are driven step by step: `await driver.turn(session)`.

    Each command prints `size()` characters; `unique` is what was asked, written and printed.
    """

    def __init__(
        self,
        ledger: Ledger,
        notifier: Notifier,
        folder: Path,
        size: Callable[[], int],
        seed: int = 1,
        checkpoints: CheckpointStore | None = None,
        checkpoint_settings: CheckpointSettings | None = None,
        agent: AgentConfig | None = None,
        gateway: ModelGateway | None = None,
        custom_tools: CustomTools | None = None,
        memory: MemoryStores | None = None,
    ) -> None:
        chosen = random.Random(seed)
        clock, ids = SteppingClock(), UuidIds()
        agents = {AGENT: agent or AgentConfig(AGENT, "instant", "instant", approvals={"bash": Approval.ALLOW})}
        self.ledger = ledger
        self.chosen = chosen
        self.unique = Unique()
        self.model = OneCallModel(chosen, self.unique)
        self.size = size
        self.sandbox = PrintingSandbox(chosen, lambda: self.size(), self.unique)
        self._folder = folder
        contents = Contents(FileBlobStore(folder / "blobs"))
        workbench = Workbench(
            self.sandbox,  # type: ignore[arg-type]
            lambda session: SandboxSpec(session.session_id, ledger.instance_id, session.workspace.path),
        )
        self.sessions = SessionService(ledger, clock, ids, agents, AGENT)
        self.agents = agents
        self.contents = contents
        self.history = HistoryService(ledger)
        self.clock = clock
        self.turns = TurnService(ledger, contents, clock, ids, agents, self.model.validate)
        model = gateway or self.model
        parts = ExecutionParts(
            ledger,
            notifier,
            clock,
            contents,
            agents,
            model,
            workbench,
            definitions,
            "driver",
            "driver-host",
            custom_tools=custom_tools or NoCustomTools(),
            memory=memory,
            checkpoints=checkpoints,
            checkpoint_settings=checkpoint_settings or CheckpointSettings(),
        )
        guard = WorkspaceGuard(PatientLedger(ledger), clock, None, parts.worker)
        self._steps = turn_steps(parts, guard, lambda *_: ("queue", "queue"))
        self.conversations = self._steps.conversations
        self._dispatcher = Dispatcher(ledger, _Accepting(), clock, parts.worker)
        self._environment = ActivityEnvironment()

    async def open(self) -> str:
        return (await self.sessions.open(OpenSession(str(self._folder)))).session_id

    async def begin(self, session_id: str) -> str:
        text = f"Please look at {log_text(self.chosen, 100)}"
        self.unique.add(text.encode())
        return (await self.turns.begin(BeginTurn(session_id, text))).turn.turn_id

    async def prepare(self, session_id: str, turn_id: str) -> None:
        """Dispatch the turn and claim it."""
        assert await self._dispatcher.run_once() == 1
        params = PrepareParams(turn_id, session_id, _claim(turn_id))
        prepared = await self._run(self._steps.turns.prepare_turn, params)
        assert prepared.failure is None

    async def ask(self, session_id: str, turn_id: str, round_: int, *, calls: bool) -> CallModelResult:
        """One model call, which asks for a command or is the last one."""
        self.model.calls = calls
        params = CallModelParams(turn_id, session_id, _claim(turn_id), AGENT, round_)
        answer: CallModelResult = await self._run(self._steps.models.call_model, params)
        assert len(answer.calls) == calls
        return answer

    async def run_calls(self, session_id: str, turn_id: str, round_: int, answer: CallModelResult) -> None:
        """The calls of an answer."""
        for call in answer.calls:
            params = RunToolParams(
                turn_id, session_id, _claim(turn_id), AGENT, round_, call.index, call.tool, answer.effect_id
            )
            assert not (await self._run(self._steps.tools.run_tool, params)).is_error

    async def answer(self, session_id: str, turn_id: str) -> None:
        """A prepared turn to its end: one command and an answer."""
        for round_ in (1, 2):
            answer = await self.ask(session_id, turn_id, round_, calls=round_ == 1)
            await self.run_calls(session_id, turn_id, round_, answer)
        params = FinishParams(turn_id, session_id, _claim(turn_id), TurnState.COMPLETED, 2)
        assert (await self._run(self._steps.turns.finish_turn, params)).state is TurnState.COMPLETED

    async def send(self, session_id: str, text: str) -> str:
        """Begin a turn with this request and prepare it."""
        turn_id = (await self.turns.begin(BeginTurn(session_id, text))).turn.turn_id
        await self.prepare(session_id, turn_id)
        return turn_id

    async def call_model(self, session_id: str, turn_id: str, round_: int, attempt: int = 1) -> CallModelResult:
        """One try of a model call, whatever it answers; `attempt` is Temporal's number of it."""
        params = CallModelParams(turn_id, session_id, _claim(turn_id), AGENT, round_)
        self._environment.info = replace(self._environment.info, attempt=attempt)
        result: CallModelResult = await self._run(self._steps.models.call_model, params)
        return result

    async def finish(
        self,
        session_id: str,
        turn_id: str,
        rounds: int,
        state: TurnState = TurnState.COMPLETED,
        code: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Write the turn's end."""
        params = FinishParams(turn_id, session_id, _claim(turn_id), state, rounds, code, reason)
        assert (await self._run(self._steps.turns.finish_turn, params)).state is state
        if self._steps.memory.writer is not None:
            await self._steps.memory.writer.run_once()

    async def play(self, session_id: str, text: str) -> str:
        """A whole turn: rounds until the model asks for no more calls, or a call of it fails."""
        turn_id = await self.send(session_id, text)
        for round_ in range(1, 100):
            answer = await self.call_model(session_id, turn_id, round_)
            if answer.outcome is ModelOutcome.FAILED:
                await self.finish(session_id, turn_id, round_, TurnState.FAILED, answer.error_code, answer.error)
                break
            await self.run_calls(session_id, turn_id, round_, answer)
            if not answer.calls:
                await self.finish(session_id, turn_id, round_)
                break
        return turn_id

    async def turn(self, session_id: str) -> str:
        """A whole turn."""
        turn_id = await self.begin(session_id)
        await self.prepare(session_id, turn_id)
        await self.answer(session_id, turn_id)
        return turn_id

    async def _run(self, step: Callable[[Any], Any], params: Any) -> Any:
        return await self._environment.run(step, params)


def _claim(turn_id: str) -> str:
    return f"run-{turn_id}"


@contextmanager
def short_memory(turns: int) -> Iterator[None]:
    """Give models no more than so many earlier turns, which changes nothing of what is stored."""
    kept = conversation.MAX_PROJECTED_TURNS
    conversation.MAX_PROJECTED_TURNS = turns
    try:
        yield
    finally:
        conversation.MAX_PROJECTED_TURNS = kept


@dataclass(frozen=True)
class Stored:
    """Bytes of a ledger on SQLite and its blobs: pages of tables, of indexes (also the search index), files."""

    tables: dict[str, int]
    indexes: int
    blobs: int

    @property
    def kept(self) -> int:
        """What is not an index."""
        return sum(self.tables.values()) + self.blobs


async def unique_payloads(ledger: Ledger, session_ids: Sequence[str], folder: Path) -> Unique:
    """All that the ledger and the blobs hold of driven Sessions.

    Payloads of events are taken as they were appended; an agent's start, which repeats in every turn, counts once, and
    so does a blob. Of an output that was shortened for the model the shortened text is not counted beside the whole.
    """
    found, starts = Unique(), set()
    for session_id in session_ids:
        after = 0
        while page := await ledger.read(lambda tx: tx.events.read(session_id, after=after, limit=500)):  # noqa: B023
            after = page[-1].seq
            for item in page:
                if item.type == AgentStarted.TYPE:
                    start = item.payload.replace(canonical_bytes(item.turn_id), b"")
                    if start in starts:
                        continue
                    starts.add(start)
                event = decode_event(item.type, item.version, item.payload)
                if isinstance(event, ToolFinished) and event.full_output is not None:
                    event = replace(event, output=Content(""))
                found.add(encode(event))
    for blob in blob_files(folder / "blobs"):
        with blob.opened() as plain:
            found.add(plain.read(plain.size))
    return found


def stored(folder: Path) -> Stored:
    """Measure the ledger in a driver's folder. Pages that are empty count for what they were last used for."""
    database = sqlite3.connect(folder / "ledger.db")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    rows = database.execute(
        "SELECT coalesce(m.tbl_name, d.name), m.type, sum(d.pgsize) FROM dbstat d LEFT JOIN sqlite_schema m"
        " ON m.name = d.name GROUP BY 1, 2"
    ).fetchall()
    database.close()
    tables: dict[str, int] = {}
    indexes = 0
    for name, kind, size in rows:
        if kind == "index" or name.startswith("search_"):
            indexes += size
        else:
            tables[name] = tables.get(name, 0) + size
    files = [path.stat().st_size for path in (folder / "blobs").rglob("*") if path.is_file()]
    return Stored(tables, indexes, sum(files))
