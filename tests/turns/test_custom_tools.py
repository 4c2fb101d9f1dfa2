"""Turns with tools of the user's own: what is recorded, lost workers, stops, and where they run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.effects import Effect, EffectClass, EffectState
from milepost.domain.events import AgentStarted, ToolFinished
from milepost.domain.extensions import HttpTool
from milepost.domain.tools import Approval
from milepost.domain.turns import TurnState
from milepost.extensions.http import PeerClient
from milepost.extensions.tools import ConfiguredTools
from milepost.providers.gateway import Gateway
from milepost.security.redaction import Redactor
from milepost.services.approvals import Answer
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.extensions.conftest import SECRET, Secrets, http_tool
from tests.support.databases import OpenLedger
from tests.support.peer import Peer
from tests.support.temporal import Stack, build_stack
from tests.turns.held import Edge, HeldLedger
from tests.turns.test_approvals import approvals, pending
from tests.turns.test_turns import call, events_of, script
from workers.process import WorkerProcess, split_queues

KINDS = (EffectClass.OBSERVE, EffectClass.IDEMPOTENT, EffectClass.KEYED, EffectClass.AT_MOST_ONCE)
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}},
    "required": ["title"],
    "additionalProperties": False,
}

Make = Callable[..., Awaitable[Stack]]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """What depends on the database is tested on both with the ledger; here the second one is for the slow run."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


@pytest.fixture
async def make(
    opened: OpenLedger, gateway: Gateway, temporal_address: TemporalAddress, tmp_path: Path
) -> AsyncIterator[Make]:
    """A stack without any sandbox, whose one agent has these tools."""
    clients = []

    async def make(*tools: HttpTool) -> Stack:
        clients.append(PeerClient(Secrets()))
        configured = ConfiguredTools({tool.definition.name: tool for tool in tools}, clients[-1])
        configured.load()
        agent = AgentConfig("default", "scripted", "demo", tools=("bash", *(tool.definition.name for tool in tools)))
        stack = await build_stack(
            opened.ledger,
            opened.notifier,
            FileBlobStore(tmp_path / "blobs"),
            gateway,
            None,
            temporal_address,
            {"default": agent},
            configured,
        )
        return replace(stack, parts=replace(stack.parts, redactor=Redactor([SECRET])))

    yield make
    for client in clients:
        await client.close()


def tool(peer: Peer, path: str, kind: EffectClass = EffectClass.AT_MOST_ONCE, **more: object) -> HttpTool:
    return http_tool("ticket", peer.url + path, kind, parameters=SCHEMA, **more)  # type: ignore[arg-type]


ONE = script({"calls": [call("ticket", title="Leak")]}, {"text": "Done."})


async def effect_of(stack: Stack, session: str) -> Effect:
    (effect,) = [each for each in await stack.history.effects(session) if each.spec.operation == "tool:ticket"]
    return effect


async def results(stack: Stack, session: str) -> list[ToolFinished]:
    return [event for event in await events_of(stack, session) if isinstance(event, ToolFinished)]


async def test_what_a_turn_records(make: Make, peer: Peer, tmp_path: Path) -> None:
    stack = await make(tool(peer, "/echo", EffectClass.KEYED))
    session = await stack.open(tmp_path)
    bad = {"calls": [call("ticket", title=7), call("ticket", titel="x"), call("bash", command="x")]}
    async with stack.worker():
        begun = await stack.send(
            session, script=script({"calls": [call("ticket", title="Leak")]}, bad, {"text": "Done."})
        )
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    started = next(event for event in await events_of(stack, session) if isinstance(event, AgentStarted))
    assert [definition.name for definition in started.tools] == ["ticket"], "there is no sandbox, so no bash"
    assert started.custom_tools[0].policy.effect_class is EffectClass.KEYED
    assert started.approvals == {"ticket": Approval.ALLOW}
    effect = await effect_of(stack, session)
    assert (effect.state, effect.spec.effect_class) == (EffectState.SUCCEEDED, EffectClass.KEYED)
    assert peer.keys() == [effect.spec.idempotency_key], "calls with bad arguments reach no peer"
    first, number, unknown, none = await results(stack, session)
    assert "[hidden]" in first.output.text and SECRET not in first.output.text
    assert first.detail == {"status": 200} and not first.is_error
    assert "'title' must be of type string" in number.output.text
    assert "'titel' is no argument" in unknown.output.text or "'title' is missing" in unknown.output.text
    assert "no tool 'bash'" in none.output.text


async def test_arguments_that_are_nested_too_deeply_reach_nobody(make: Make, peer: Peer, tmp_path: Path) -> None:
    """Far below the depth at which copying them fails, after the dispatch: of a call that was never made."""
    stack = await make(http_tool("ticket", peer.url + "/ok"))
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=script({"calls": [call("ticket", x=deep)]}, {"text": "Done."}))
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    (finished,) = await results(stack, session)
    assert finished.state is EffectState.FAILED and "nested too deeply" in finished.output.text
    assert peer.requests == []


@pytest.mark.parametrize("kind", [EffectClass.KEYED, EffectClass.AT_MOST_ONCE])
async def test_a_worker_lost_during_a_call(make: Make, peer: Peer, tmp_path: Path, kind: EffectClass) -> None:
    stack = await make(tool(peer, "/slow", kind))
    session = await stack.open(tmp_path)
    async with stack.worker(grace=0.1):
        begun = await stack.send(session, script=ONE)
        assert await asyncio.to_thread(peer.arrived)
    assert (await effect_of(stack, session)).state is EffectState.DISPATCHED
    peer.released.set()
    async with stack.worker():
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    effect = await effect_of(stack, session)
    (result,) = await results(stack, session)
    if kind is EffectClass.KEYED:
        assert peer.keys() == [effect.spec.idempotency_key] * 2
        assert (effect.state, effect.attempt, result.output.text) == (EffectState.SUCCEEDED, 2, "done")
    else:
        assert peer.keys() == [None], "it is never made again by itself"
        assert (effect.state, effect.attempt) == (EffectState.UNCERTAIN, 1)
        assert result.is_error and "Outcome unknown" in result.output.text and "worker was lost" in result.output.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stop_during_a_call(make: Make, peer: Peer, tmp_path: Path, kind: EffectClass) -> None:
    stack = await make(tool(peer, "/slow", kind))
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=ONE)
        assert await asyncio.to_thread(peer.arrived)
        await stack.turns.stop(begun.turn.turn_id, actor="test")
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.STOPPED
    effect, (result,) = await effect_of(stack, session), await results(stack, session)
    open_end = kind in (EffectClass.KEYED, EffectClass.AT_MOST_ONCE)
    assert effect.state is (EffectState.UNCERTAIN if open_end else EffectState.CANCELLED)
    assert result.state is effect.state and result.is_error
    assert len(peer.requests) == 1


async def test_a_stop_between_dispatch_and_call(make: Make, peer: Peer, tmp_path: Path) -> None:
    stack = await make(tool(peer, "/ok"))
    held = HeldLedger(stack.parts.ledger)
    stack = replace(stack, parts=replace(stack.parts, ledger=held))
    session = await stack.open(tmp_path)
    hold = held.hold("trn_between", Edge("after", "enter", "tool.1.0"))
    async with stack.worker():
        await stack.send(session, turn_id="trn_between", script=ONE)
        async with asyncio.timeout(60):
            await hold.reached.wait()
        await stack.turns.stop("trn_between", actor="test")
        await asyncio.sleep(0.05)  # a moment in which the stop is heard
        hold.release.set()
        assert (await stack.ended("trn_between")).state is TurnState.STOPPED
    assert peer.requests == []
    assert (await effect_of(stack, session)).state is EffectState.CANCELLED


@pytest.mark.parametrize(
    ("path", "kind", "sent", "state"),
    [
        ("/status/503", EffectClass.OBSERVE, 3, EffectState.FAILED),
        ("/status/503", EffectClass.AT_MOST_ONCE, 1, EffectState.FAILED),
        ("/drop", EffectClass.KEYED, 3, EffectState.UNCERTAIN),
        ("/drop", EffectClass.AT_MOST_ONCE, 1, EffectState.UNCERTAIN),
        ("/status/400", EffectClass.KEYED, 1, EffectState.FAILED),
    ],
)
async def test_what_is_tried_again(
    make: Make, peer: Peer, tmp_path: Path, path: str, kind: EffectClass, sent: int, state: EffectState
) -> None:
    stack = await make(tool(peer, path, kind))
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=ONE)
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    assert len(peer.requests) == sent and len(set(peer.keys())) == 1
    assert (await effect_of(stack, session)).state is state


async def test_a_tool_that_asks_by_default(make: Make, peer: Peer, tmp_path: Path) -> None:
    stack = await make(tool(peer, "/ok", approval=Approval.ASK))
    session = await stack.open(tmp_path)
    async with stack.worker():
        begun = await stack.send(session, script=ONE)
        (approval,) = await pending(stack, session)
        assert peer.requests == []
        await approvals(stack).answer(approval.approval_id, Answer(True, "anna"))
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    assert len(peer.requests) == 1


async def test_a_tool_that_cannot_be_had_fails_the_turn_with_what_to_do(make: Make, peer: Peer, tmp_path: Path) -> None:
    stack = await make(tool(peer, "/ok"))
    without = await make()
    lacking = replace(stack, parts=replace(stack.parts, custom_tools=without.parts.custom_tools))
    session = await stack.open(tmp_path)
    async with lacking.worker():
        begun = await stack.send(session, script=ONE)
        ended = await stack.ended(begun.turn.turn_id)
    assert (ended.state, ended.error_code) == (TurnState.FAILED, "tool_unavailable")
    assert "tools.ticket" in (ended.error_message or "")


async def test_they_run_where_model_calls_do(make: Make, peer: Peer, tmp_path: Path) -> None:
    stack = await make(tool(peer, "/ok"))
    session = await stack.open(tmp_path)
    queues = split_queues("no-such-host", ("turns", "models"))
    process = WorkerProcess(stack.parts, stack.client, stack.starter, queues, reconcile_seconds=0.5)
    await process.start()
    try:
        begun = await stack.send(session, script=ONE)
        assert (await stack.ended(begun.turn.turn_id)).state is TurnState.COMPLETED
    finally:
        await process.stop()
    assert len(peer.requests) == 1, "no worker of any sandbox host was there"
