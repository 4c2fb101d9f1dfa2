"""Stacks whose configuration has agents that work together."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.budgets import Budget, Limits
from milepost.domain.teams import AgentFailure, AgentRole
from milepost.domain.tools import Approval
from milepost.ledger.chain import verify_chain
from milepost.ledger.codec import decode_event
from milepost.providers.gateway import Gateway
from milepost.services.sessions import OpenSession
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.support.databases import OpenLedger
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack
from tests.turns.conftest import gateway, sandboxes

__all__ = ["gateway", "sandboxes"]

FILES = ("read_file", "write_file")


def agent(name: str, *, tools: tuple[str, ...] = (), **more: Any) -> AgentConfig:
    return AgentConfig(name, "scripted", "demo", tools=tools, **more)


AGENTS = {
    each.agent_id: each
    for each in (
        agent("default"),
        agent("scout", tools=("read_file",)),
        agent("writer", tools=FILES, depends_on=("scout",)),
        agent("critic", depends_on=("scout",)),
        agent("editor", depends_on=("writer", "critic")),
        agent("optional", on_failure=AgentFailure.CONTINUE),
        agent("shell", tools=("bash",)),
        agent("asker", tools=("bash",), approvals={"bash": Approval.ASK}),
        agent("reader", tools=("read_file",)),
        agent("coder", tools=FILES),
        agent("runner", tools=("bash", "read_file")),
        agent("lead", tools=("bash", *FILES), role=AgentRole.COORDINATOR, workers=("coder", "runner")),
        agent(
            "poor",
            role=AgentRole.COORDINATOR,
            workers=("coder",),
            budget=Budget(turn=Limits(model_calls=2)),
        ),
        agent("alone", tools=("bash", *FILES), role=AgentRole.COORDINATOR),
        agent("heir", role=AgentRole.COORDINATOR, workers=("coder",), depends_on=("scout",)),
        agent("middle", role=AgentRole.COORDINATOR, workers=("coder",)),
        agent("top", role=AgentRole.COORDINATOR, workers=("middle",)),
        *(agent(f"leaf{number}", tools=("bash",)) for number in range(5)),
        *(
            agent(f"branch{number}", role=AgentRole.COORDINATOR, workers=tuple(f"leaf{leaf}" for leaf in range(5)))
            for number in range(5)
        ),
        agent("tree", role=AgentRole.COORDINATOR, workers=tuple(f"branch{number}" for number in range(5))),
        *(agent(f"w{number}") for number in range(8)),
        agent("wide", role=AgentRole.COORDINATOR, workers=tuple(f"w{number}" for number in range(8))),
    )
}


@pytest.fixture
async def stack(
    opened: OpenLedger,
    gateway: Gateway,
    sandboxes: MemorySandboxes,
    temporal_address: TemporalAddress,
    tmp_path_factory: pytest.TempPathFactory,
) -> Stack:
    blobs = FileBlobStore(tmp_path_factory.mktemp("blobs"))
    return await build_stack(
        opened.ledger, opened.notifier, blobs, gateway, sandboxes, temporal_address, agents=dict(AGENTS)
    )


OpenTeam = Callable[..., Awaitable[str]]


@pytest.fixture
def open_team(stack: Stack, tmp_path: Path) -> OpenTeam:
    async def open_(*agents: str) -> str:
        return (await stack.sessions.open(OpenSession(str(tmp_path), agents=agents))).session_id

    return open_


def plan(*subtasks: dict[str, Any]) -> str:
    """A planner's answer."""
    return json.dumps({"subtasks": list(subtasks)})


def subtask(name: str, *, tools: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "description": f"Do {name}.", "tools": list(tools), "depends_on": list(after)}


def script(parts: dict[str, list[Any]]) -> str:
    """A script: what each part of the turn answers."""
    agents = {
        part: [{"text": each} if isinstance(each, str) else each for each in answers] for part, answers in parts.items()
    }
    return json.dumps({"responses": [{"text": "I have nothing to do here."}], "agents": agents})


async def events_of(stack: Stack, session_id: str, *kinds: type) -> list[Any]:
    stored = await stack.parts.ledger.read(lambda tx: tx.events.read(session_id, limit=10_000))
    verify_chain(stored)
    events = [decode_event(item.type, item.version, item.payload) for item in stored]
    return [event for event in events if not kinds or isinstance(event, kinds)]
