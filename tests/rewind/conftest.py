"""The services of rewinds over each database, without Temporal: what a worker would write is written by the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.conversation import Conversations
from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.agents import AgentConfig
from milepost.domain.content import Content
from milepost.domain.effects import EffectClass, EffectState
from milepost.domain.events import ToolStarted
from milepost.ports.ledger import Ledger
from milepost.services.contents import Contents
from milepost.services.forks import ForkService
from milepost.services.history import HistoryService
from milepost.services.rewinds import RewindService
from milepost.services.sessions import OpenSession, SessionService, workspace_folder
from milepost.services.turns import BeginTurn, TurnService
from milepost.services.verification import Finding, VerificationService
from milepost.services.workspaces import WorkspaceGuard
from milepost.snapshots import GitSnapshots
from milepost.storage import FileBlobStore
from tests.api.stack import AGENT, Work, validate_route
from tests.support.databases import OpenLedger


@dataclass
class Bench:
    """Everything a test of rewinds drives, over one ledger."""

    ledger: Ledger
    sessions: SessionService
    turns: TurnService
    rewinds: RewindService
    history: HistoryService
    conversations: Conversations
    folder: Path
    snapshots: GitSnapshots
    guard: WorkspaceGuard
    forks: ForkService

    async def open(self) -> str:
        return (await self.sessions.open(OpenSession(str(self.folder)))).session_id

    async def turn(self, session_id: str, text: str, answer: str | None = None, tool: str | None = None) -> str:
        """A whole turn: asked, maybe with a tool call, answered, ended."""
        turn = (await self.turns.begin(BeginTurn(session_id, text))).turn
        await self.work(session_id, turn.turn_id, answer or f"answer to {text}", tool)
        return turn.turn_id

    async def work(self, session_id: str, turn_id: str, answer: str, tool: str | None = None) -> None:
        work = Work(self.ledger, session_id, turn_id)
        await work.claim()
        await work.start_agent()
        if tool is not None:
            await work.run_tool(Content("done"), tool=tool)
        spec, attempt = await work.start_call()
        await work.finish_call(spec, attempt, answer)
        await work.end()

    async def begin(self, session_id: str, text: str = "do it") -> str:
        """A turn that has begun and been claimed."""
        turn_id = (await self.turns.begin(BeginTurn(session_id, text))).turn.turn_id
        work = Work(self.ledger, session_id, turn_id)
        await work.claim()
        await work.start_agent()
        return turn_id

    async def call(self, session_id: str, turn_id: str, act: Callable[[], object], number: int = 1) -> None:
        """A call of a shell that does this to files, as a worker performs it."""
        session = await self.sessions.get(session_id)
        work = Work(self.ledger, session_id, turn_id)
        spec = work.spec(f"tool.{number}.0", "tool:bash", EffectClass.ATTACHABLE)
        await self.guard.enter(session, turn_id, spec.effect_id, writes=True)
        started = ToolStarted(turn_id, AGENT, spec.effect_id, 1, number, 0, "call", "bash")
        await work.append((f"started/{number}", started))
        await self.ledger.write(lambda tx: tx.effects.dispatch(spec, work.at, "worker"))
        act()
        await self.guard.leave(session, turn_id, spec.effect_id, 1)
        await self.ledger.write(lambda tx: tx.effects.settle(spec.effect_id, 1, EffectState.SUCCEEDED, work.at, b"{}"))

    async def end(self, session_id: str, turn_id: str) -> None:
        await Work(self.ledger, session_id, turn_id).end()

    async def writes(self, session_id: str, *acts: Callable[[], object]) -> str:
        """A whole turn whose calls do this to files."""
        turn_id = await self.begin(session_id)
        for number, act in enumerate(acts, 1):
            await self.call(session_id, turn_id, act, number)
        await self.end(session_id, turn_id)
        return turn_id

    def write(self, path: str, text: str) -> Callable[[], object]:
        def act() -> None:
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text)

        return act

    def remove(self, path: str) -> Callable[[], object]:
        return (self.folder / path).unlink

    def files(self) -> dict[str, str]:
        """The Workspace's files with their texts."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_text() for path in found}

    async def verified(self) -> list[Finding]:
        """What a check of the whole ledger finds."""
        contents = Contents(FileBlobStore(self.folder.parent / "blobs"))
        return (await VerificationService(self.ledger, contents).verify()).findings

    async def texts(self, turn_id: str) -> list[str]:
        """What the model of this turn gets, as texts."""
        context = await self.conversations.whole(turn_id, AGENT, 1)
        return [getattr(message.text, "text", message.text) for message in context.messages]


def make_bench(ledger: Ledger, root: Path) -> Bench:
    clock, ids = SystemClock(), UuidIds()
    contents = Contents(FileBlobStore(root / "blobs"))
    agents = {AGENT: AgentConfig(AGENT, "scripted", "demo")}
    snapshots = GitSnapshots(root / "snapshots")
    folder = root / "project"
    folder.mkdir(exist_ok=True)
    return Bench(
        ledger,
        SessionService(ledger, clock, ids, agents, AGENT),
        TurnService(ledger, contents, clock, ids, agents, validate_route),
        RewindService(ledger, clock, ids, snapshots),
        HistoryService(ledger),
        Conversations(ledger, contents),
        folder,
        snapshots,
        WorkspaceGuard(ledger, clock, snapshots, "worker"),
        ForkService(ledger, clock, ids, snapshots, lambda path: workspace_folder(path, root / "data")),
    )


@pytest.fixture
def bench(opened: OpenLedger, tmp_path: Path) -> Bench:
    return make_bench(opened.ledger, tmp_path)


_SLOW_ON_POSTGRESQL = ("test_files", "test_fork", "test_guard")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The default run sees these on SQLite alone; what differs between the databases is in the ledger's own tests."""
    for item in items:
        here = item.path.parent == Path(__file__).parent and item.path.stem in _SLOW_ON_POSTGRESQL
        if here and item.get_closest_marker("postgres") is not None:
            item.add_marker(pytest.mark.slow)
