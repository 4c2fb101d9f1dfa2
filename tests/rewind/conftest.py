"""The services of rewinds over each database, without Temporal: what a worker would write is written by the tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.conversation import Conversations
from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.agents import AgentConfig
from milepost.ports.ledger import Ledger
from milepost.services.contents import Contents
from milepost.services.history import HistoryService
from milepost.services.rewinds import RewindService
from milepost.services.sessions import OpenSession, SessionService
from milepost.services.turns import BeginTurn, TurnService
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

    async def open(self) -> str:
        return (await self.sessions.open(OpenSession(str(self.folder)))).session_id

    async def turn(self, session_id: str, text: str, answer: str | None = None, tool: str | None = None) -> str:
        """A whole turn: asked, maybe with a tool call, answered, ended."""
        turn = (await self.turns.begin(BeginTurn(session_id, text))).turn
        await self.work(session_id, turn.turn_id, answer or f"answer to {text}", tool)
        return turn.turn_id

    async def work(self, session_id: str, turn_id: str, answer: str, tool: str | None = None) -> None:
        from milepost.domain.content import Content

        work = Work(self.ledger, session_id, turn_id)
        await work.claim()
        await work.start_agent()
        if tool is not None:
            await work.run_tool(Content("done"), tool=tool)
        spec, attempt = await work.start_call()
        await work.finish_call(spec, attempt, answer)
        await work.end()

    async def texts(self, turn_id: str) -> list[str]:
        """What the model of this turn gets, as texts."""
        context = await self.conversations.whole(turn_id, AGENT, 1)
        return [getattr(message.text, "text", message.text) for message in context.messages]


def make_bench(ledger: Ledger, root: Path) -> Bench:
    clock, ids = SystemClock(), UuidIds()
    contents = Contents(FileBlobStore(root / "blobs"))
    agents = {AGENT: AgentConfig(AGENT, "scripted", "demo")}
    folder = root / "project"
    folder.mkdir(exist_ok=True)
    return Bench(
        ledger,
        SessionService(ledger, clock, ids, agents, AGENT),
        TurnService(ledger, contents, clock, ids, agents, validate_route),
        RewindService(ledger, clock, ids),
        HistoryService(ledger),
        Conversations(ledger, contents),
        folder,
    )


@pytest.fixture
def bench(opened: OpenLedger, tmp_path: Path) -> Bench:
    return make_bench(opened.ledger, tmp_path)
