"""Stop at every point of a turn: one terminal state, what was said is kept, and the next request is valid."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from milepost.domain.agents import AgentConfig
from milepost.domain.effects import EffectState
from milepost.domain.errors import TurnNotRunning
from milepost.domain.events import TERMINAL_TURN_EVENTS, ModelCalled
from milepost.domain.providers import OpenAICompatibleProvider, ScriptedProvider
from milepost.domain.tools import BUILTIN_TOOL_POLICIES, PROCESS_TOOLS, UNSANDBOXED_TOOLS, Approval
from milepost.domain.turns import Turn, TurnState, TurnStatus
from milepost.providers.gateway import Gateway
from milepost.services.dispatch import Dispatcher
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress, connect
from milepost.temporal.starter import TemporalStarter
from tests.support.databases import OpenLedger
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.proxy import proxied
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import Stack, build_stack
from tests.turns.conftest import NoSecrets
from tests.turns.held import EDGES, Edge, HeldLedger
from tests.turns.test_stop import first_delta
from tests.turns.test_turns import call, events_of, script

SECONDS = 60
OPEN = (EffectState.PLANNED, EffectState.AWAITING_APPROVAL, EffectState.DISPATCHED)
WITH_TOOL = script({"text": "Looking.", "calls": [call("bash", command="make")]}, {"text": "Done."})
LONG = {"text": "word " * 1000, "delay": 0.02}
ARGUMENTS = {
    "read_file": {"path": "a"},
    "list_dir": {"path": "."},
    "grep": {"pattern": "x"},
    "glob": {"pattern": "*"},
    "write_file": {"path": "a", "content": "x"},
    "edit_file": {"path": "a", "old": "x", "new": "y"},
    "git_status": {},
    "git_diff": {"path": "a"},
    "bash": {"command": "make"},
}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
def ledger_url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


@dataclass
class Scene:
    """A stack whose worker can be held, with a model endpoint that refuses requests a real one would refuse."""

    stack: Stack
    held: HeldLedger
    server: OpenAIServer
    sandboxes: MemorySandboxes
    folder: Path

    async def stopped(self, session: str, turn_id: str) -> Turn:
        """The turn's end, which must be the one and only, with nothing left open behind it."""
        turn = await self.stack.ended(turn_id, SECONDS)
        assert turn.state is TurnState.STOPPED, turn
        with pytest.raises(TurnNotRunning):
            await self.stack.turns.stop(turn_id, actor="test")
        await self.over(session, turn_id)
        return turn

    async def over(self, session: str, turn_id: str) -> None:
        events = [event for event in await events_of(self.stack, session) if getattr(event, "turn_id", "") == turn_id]
        terminal = [event for event in events if isinstance(event, TERMINAL_TURN_EVENTS)]
        assert terminal == [events[-1]], [type(event).__name__ for event in events]
        effects = await self.stack.history.effects(session, turn_id=turn_id)
        assert not [effect for effect in effects if effect.state in OPEN]
        left = await self.stack.parts.ledger.read(lambda tx: tx.deltas.read(session, turn_id, after=0, limit=1))
        assert left == []

    async def goes_on(self, session: str) -> list[dict[str, object]]:
        """The next turn of the Session completes; returns the messages that its model was sent."""
        said = f"and now, {session}?"
        begun = await self.stack.send(session, said, provider="fake", model="fake-small")
        turn = await self.stack.ended(begun.turn.turn_id, SECONDS)
        assert turn.state is TurnState.COMPLETED, turn
        (sent,) = [chat.body["messages"] for chat in self.server.chats if said in str(chat.body["messages"][-1])]
        return list(sent)

    async def said(self, session: str, turn_id: str) -> list[str]:
        """Recorded texts of the turn's model calls."""
        events = await events_of(self.stack, session)
        return [event.message.text for event in events if isinstance(event, ModelCalled) and event.turn_id == turn_id]


@pytest.fixture
async def scene(
    opened: OpenLedger,
    model_server: OpenAIServer,
    sandboxes: MemorySandboxes,
    temporal_address: TemporalAddress,
    tmp_path: Path,
) -> AsyncIterator[Scene]:
    fake = OpenAICompatibleProvider("fake", model_server.base_url, default_model="fake-small")
    gateway = Gateway({"scripted": ScriptedProvider("scripted"), "fake": fake}, NoSecrets())
    asking = AgentConfig("asking", "scripted", "demo", approvals={"bash": Approval.ASK})
    agents = {"default": AgentConfig("default", "scripted", "demo"), "asking": asking}
    blobs = FileBlobStore(tmp_path / "blobs")
    stack = await build_stack(opened.ledger, opened.notifier, blobs, gateway, sandboxes, temporal_address, agents)
    held = HeldLedger(opened.ledger)
    stack.parts = replace(stack.parts, ledger=held)
    yield Scene(stack, held, model_server, sandboxes, tmp_path)
    await gateway.close()


async def _at_edge(scene: Scene, edge: Edge) -> None:
    stack, session = scene.stack, await scene.stack.open(scene.folder)
    turn_id = f"trn_{str(edge).replace(' ', '-')}"
    hold = scene.held.hold(turn_id, edge)
    await stack.send(session, turn_id=turn_id, script=WITH_TOOL)
    async with asyncio.timeout(SECONDS):
        await hold.reached.wait()
    if edge == Edge("after", "finish"):
        with pytest.raises(TurnNotRunning):
            await stack.turns.stop(turn_id, actor="test")
        hold.release.set()
        assert (await stack.ended(turn_id)).state is TurnState.COMPLETED
        await scene.over(session, turn_id)
    else:
        view = await stack.turns.stop(turn_id, actor="test")
        assert view.turn.state.terminal is (edge == Edge("before", "prepare"))
        await asyncio.sleep(0.05)  # a moment in which the stop may be heard while the transaction is held
        hold.release.set()
        await scene.stopped(session, turn_id)
    said = "".join(await scene.said(session, turn_id))
    reached = EDGES.index(edge)
    assert ("Looking." in said) is (reached >= EDGES.index(Edge("before", "settle", "model.1"))), said
    ran = scene.sandboxes.by_session[session].commands() if session in scene.sandboxes.by_session else []
    # Not even what was dispatched already is begun after the stop.
    assert (ran == []) is (reached < EDGES.index(Edge("before", "settle", "tool.1.0"))), ran
    messages = await scene.goes_on(session)
    assert ("Looking." in str(messages)) is ("Looking." in said)


async def test_at_every_edge_of_every_transaction(scene: Scene) -> None:
    async with scene.stack.worker():
        results = await asyncio.gather(*(_at_edge(scene, edge) for edge in EDGES), return_exceptions=True)
    failed = {str(edge): error for edge, error in zip(EDGES, results, strict=True) if error is not None}
    if failed:
        raise AssertionError(f"stopped at {', '.join(failed)}") from next(iter(failed.values()))


async def test_between_dispatch_and_the_first_activity(scene: Scene) -> None:
    stack, session = scene.stack, await scene.stack.open(scene.folder)
    begun = await stack.send(session, script=WITH_TOOL)
    turn_id = begun.turn.turn_id
    assert await Dispatcher(stack.parts.ledger, stack.starter, stack.parts.clock, "test").run_once() == 1
    assert (await stack.turns.get(turn_id)).turn.dispatched_at is not None
    view = await stack.turns.stop(turn_id, actor="test")
    assert view.turn.state is TurnState.STOPPED
    async with stack.worker():
        await scene.goes_on(session)
        await scene.stopped(session, turn_id)
    assert await scene.said(session, turn_id) == []


@asynccontextmanager
async def _asked(scene: Scene, *replies: Reply) -> AsyncIterator[tuple[str, str]]:
    """A turn whose request the model endpoint has got; (Session, turn)."""
    session = await scene.stack.open(scene.folder)
    scene.server.plan(*replies)
    async with scene.stack.worker():
        begun = await scene.stack.send(session, provider="fake", model="fake-small")
        await asyncio.to_thread(scene.server.wait, lambda: scene.server.chats, SECONDS)
        yield session, begun.turn.turn_id


@pytest.mark.parametrize("pieces", [0, 3], ids=["before the first word", "while it answers"])
async def test_during_a_model_call_its_connection_is_closed(scene: Scene, pieces: int) -> None:
    reply = Reply(text="12345678" * 20, fault="stall", fault_after=pieces + 1 if pieces else 0)
    async with _asked(scene, reply) as (session, turn_id):
        if pieces:
            await first_delta(scene.stack, session)
        await scene.stack.turns.stop(turn_id, actor="test")
        turn = await scene.stopped(session, turn_id)
        await asyncio.to_thread(scene.server.wait, lambda: scene.server.chats[0].closed_at is not None, SECONDS)
        said = "".join(await scene.said(session, turn_id))
        messages = await scene.goes_on(session)
    assert not turn.usage.complete
    assert said == "12345678" * pieces
    assert (said in [message["content"] for message in messages]) is bool(pieces)
    assert len(scene.server.chats) == 2, "nothing was asked of the provider after the stop"


async def test_while_a_model_call_waits_for_its_next_try(scene: Scene) -> None:
    later = Reply(status=429, headers={"Retry-After": "600"}, body="busy")
    async with _asked(scene, later) as (session, turn_id):
        async with asyncio.timeout(SECONDS):
            while "model.retried" not in [event.TYPE for event in await events_of(scene.stack, session)]:
                await asyncio.sleep(0.02)
        await scene.stack.turns.stop(turn_id, actor="test")
        await scene.stopped(session, turn_id)
        await scene.goes_on(session)
    assert len(scene.server.chats) == 2


async def test_during_each_kind_of_tool(scene: Scene) -> None:
    # Those of terminals are stopped in tests/turns/test_process_tools.py.
    assert set(ARGUMENTS) == set(BUILTIN_TOOL_POLICIES) - UNSANDBOXED_TOOLS - PROCESS_TOOLS
    scene.sandboxes.hang = True

    async def stop_in(tool: str) -> None:
        session = await scene.stack.open(scene.folder)
        calls = [call(tool, **ARGUMENTS[tool]), call("bash", command="never")]
        begun = await scene.stack.send(session, script=script({"text": "Now.", "calls": calls}, {"text": "no"}))
        async with asyncio.timeout(SECONDS):
            while not (session in scene.sandboxes.by_session and scene.sandboxes.by_session[session].journal):
                await asyncio.sleep(0.02)
        await scene.stack.turns.stop(begun.turn.turn_id, actor="test")
        await scene.stopped(session, begun.turn.turn_id)
        box = scene.sandboxes.by_session[session]
        assert len(box.journal) == 1 and box.killed, tool
        messages = await scene.goes_on(session)
        assert [message["role"] for message in messages].count("tool") == 2, tool

    async with scene.stack.worker():
        await asyncio.gather(*(stop_in(tool) for tool in ARGUMENTS))


async def test_while_a_call_waits_for_a_person(scene: Scene) -> None:
    session = await scene.stack.open(scene.folder)
    async with scene.stack.worker():
        begun = await scene.stack.send(session, agent="asking", script=WITH_TOOL)
        async with asyncio.timeout(SECONDS):
            while "approval.requested" not in [event.TYPE for event in await events_of(scene.stack, session)]:
                await asyncio.sleep(0.02)
        await scene.stack.turns.stop(begun.turn.turn_id, actor="test")
        await scene.stopped(session, begun.turn.turn_id)
        await scene.goes_on(session)
    assert session not in scene.sandboxes.by_session


@pytest.mark.slow
async def test_while_temporal_is_down(scene: Scene, temporal_address: TemporalAddress) -> None:
    stack, session = scene.stack, await scene.stack.open(scene.folder)
    async with proxied(temporal_address.target) as temporal:
        client = await connect(replace(temporal_address, target=temporal.address))
        scene.stack = replace(stack, client=client, starter=TemporalStarter(client, stack.parts.ledger.instance_id))
        waiting = await stack.open(scene.folder)
        async with scene.stack.worker():
            begun = await stack.send(session, script=script(LONG))
            await first_delta(stack, session)
            temporal.go_down()
            unclaimed = await stack.send(waiting, script=WITH_TOOL)
            view = await stack.turns.stop(unclaimed.turn.turn_id, actor="test")
            assert view.turn.state is TurnState.STOPPED, "nothing of it has begun anywhere"
            await stack.turns.stop(begun.turn.turn_id, actor="test")
            # What it does ends at once, only its end cannot be recorded yet.
            async with asyncio.timeout(SECONDS):
                while not await scene.said(session, begun.turn.turn_id):
                    await asyncio.sleep(0.02)
            assert (await stack.turns.get(begun.turn.turn_id)).status is TurnStatus.STOPPING
            temporal.down = False
            for each, turn_id in ((session, begun.turn.turn_id), (waiting, unclaimed.turn.turn_id)):
                await scene.stopped(each, turn_id)
                await scene.goes_on(each)
    (said,) = (await scene.said(session, begun.turn.turn_id))[:1]
    assert said and str(LONG["text"]).startswith(said)


@pytest.mark.parametrize("work", ["model", "tool"])
async def test_while_no_worker_is_there(scene: Scene, work: str) -> None:
    session = await scene.stack.open(scene.folder)
    calls = {"text": "Looking.", "calls": [call("bash", command="hang on")]}
    async with scene.stack.worker(grace=0.0):
        begun = await scene.stack.send(session, script=script(LONG if work == "model" else calls, {"text": "no"}))
        if work == "model":
            await first_delta(scene.stack, session)
        else:
            async with asyncio.timeout(SECONDS):
                while not (session in scene.sandboxes.by_session and scene.sandboxes.by_session[session].commands()):
                    await asyncio.sleep(0.02)
    turn_id = begun.turn.turn_id
    view = await scene.stack.turns.stop(turn_id, actor="test")
    assert view.turn.state is TurnState.RUNNING, "nobody can say yet that nothing of it runs"
    async with scene.stack.worker():
        await scene.stopped(session, turn_id)
        said = "".join(await scene.said(session, turn_id))
        assert said and (LONG["text"] if work == "model" else "Looking.").startswith(said)
        messages = await scene.goes_on(session)
    assert said in str(messages)
    if work == "tool":
        assert scene.sandboxes.by_session[session].killed
