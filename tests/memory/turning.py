"""Turns of agents with memory: a real stack, and what each model call was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.events import Event
from milepost.domain.memory import DEFAULT_BLOCKS, BlockSpec, MemorySettings
from milepost.domain.messages import UserMessage
from milepost.domain.providers import ScriptedProvider
from milepost.domain.turns import Turn
from milepost.memory.block_files import FileBlocks
from milepost.memory.daily_files import FileDailyLog
from milepost.ports.models import ModelItem, ModelRequest
from milepost.ports.semantic import SemanticMemory
from milepost.providers.gateway import Gateway
from milepost.services.memory_stores import MemoryStores
from milepost.services.sessions import OpenSession
from milepost.services.turns import BeginTurn
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.providers.conftest import Secrets
from tests.support.databases import OpenLedger
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack
from tests.turns.test_turns import events_of, script

TEAM = BlockSpec("team", "What all agents know.", limit=4000, shared=True)
GIVEN = BlockSpec("given", "What a person wrote.", value="Be brief.", read_only=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """As everywhere; the turns on PostgreSQL are left to the slow tests."""
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


class SeenGateway(Gateway):
    """Keeps the requests that it streams."""

    def __init__(self) -> None:
        super().__init__({"scripted": ScriptedProvider("scripted")}, Secrets())
        self.requests: list[ModelRequest] = []

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        self.requests.append(request)
        return super().stream(request)


def agent(name: str = "default", blocks: Sequence[BlockSpec] = DEFAULT_BLOCKS, **settings: Any) -> AgentConfig:
    return AgentConfig(name, "scripted", "demo", memory=MemorySettings(tuple(blocks), **settings))


@dataclass
class Turning:
    """Sends turns one after another, and gives what was sent and recorded."""

    stack: Stack
    gateway: SeenGateway
    stores: MemoryStores
    folder: Path
    sessions: list[str] = field(default_factory=list)

    async def open(self, *agents: str) -> str:
        session = await self.stack.sessions.open(OpenSession(str(self.folder), agents=agents))
        self.sessions.append(session.session_id)
        return session.session_id

    async def turn(self, session: str, text: str, *responses: object, agent: str | None = None) -> Turn:
        begun = await self.stack.turns.begin(BeginTurn(session, text, agent=agent, script=script(*responses)))
        return await self.stack.ended(begun.turn.turn_id)

    async def remembered(self) -> None:
        """Wait until nothing is left to be written."""
        async with asyncio.timeout(60):
            while await self.stack.parts.ledger.read(lambda tx: tx.memory_tasks.count()):
                await asyncio.sleep(0.02)

    async def events(self, session: str) -> list[Event]:
        return await events_of(self.stack, session)  # type: ignore[return-value]

    @property
    def last(self) -> ModelRequest:
        return self.gateway.requests[-1]

    def asked(self) -> str:
        """The request of the last call's turn, as it was sent."""
        (*_, message) = [message for message in self.last.messages if isinstance(message, UserMessage)]
        return message.text.text


@asynccontextmanager
async def turning(
    opened: OpenLedger,
    address: TemporalAddress,
    folder: Path,
    semantic: SemanticMemory,
    *agents: AgentConfig,
    stores: MemoryStores | None = None,
    sandboxes: MemorySandboxes | None = None,
    works: bool = True,
) -> AsyncIterator[Turning]:
    """A stack with memory in files below `folder`; with `works` a worker runs."""
    stores = stores or MemoryStores(FileBlocks(folder), FileDailyLog(folder), semantic)
    gateway = SeenGateway()
    known = {each.agent_id: each for each in agents or (agent(),)}
    first = next(iter(known.values()))
    stack = await build_stack(
        opened.ledger,
        opened.notifier,
        FileBlobStore(folder / "blobs"),
        gateway,
        sandboxes or MemorySandboxes(),
        address,
        {"default": replace(first, agent_id="default")} | known,
        memory=stores,
    )
    made = Turning(stack, gateway, stores, folder)
    if works:
        async with stack.worker():
            yield made
    else:
        yield made
    await gateway.close()
