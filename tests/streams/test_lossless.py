"""Live text through lost connections, providers that fail in the middle, and dead workers: equal to the ledger's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from milepost.domain.events import Event, ModelCalled, ModelRetried
from milepost.domain.turns import TurnState
from milepost.ledger.codec import decode_event
from milepost.services.live import Cursor
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.api.stack import Stack as Served
from tests.api.stack import running_stack
from tests.streams import worker
from tests.streams.clients import Client
from tests.streams.worker import AGENTS, Orders, open_gateway
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.proxy import proxied
from tests.support.temporal import Stack as Working
from tests.support.temporal import build_stack

SEED = 20_261
NASTY = "a\0b \u2028 \x85 🚦 "

Work = Callable[[], AbstractAsyncContextManager[object]]
"""A worker for as long as the block lasts, gone without a word at its end."""


@dataclass
class World:
    served: Served
    working: Working
    models: OpenAIServer
    session: str

    async def turn(self, work: Work, chance: random.Random, kill: bool) -> str:
        """A turn of one model call whose first tries break off in the middle; with `kill` its worker dies as well."""
        text = "".join(f"{n} {NASTY if n % 9 == 0 else 'word '}" for n in range(chance.randrange(60, 120)))
        good = Reply(text=text, reasoning="Let me think. " * 4, piece=6, delay=0.008)
        fault = replace(good, fault=chance.choice(("rst", "fin", "error_event")), fault_after=chance.randrange(10, 40))
        self.models.plan(*([fault] * chance.randrange(1, 3)), good, good, good)
        async with AsyncExitStack() as first:
            await first.enter_async_context(work())
            begun = await self.working.send(self.session)
            turn_id = begun.turn.turn_id
            if not kill:
                turn = await self.working.ended(turn_id, 90)
            else:
                await self._speaks(turn_id)
        if kill:
            async with work():
                turn = await self.working.ended(turn_id, 90)
        assert turn.state is TurnState.COMPLETED, turn
        self.models._plan.clear()
        return turn_id

    async def _speaks(self, turn_id: str) -> None:
        """Wait until a call has said something that was no failed try."""
        async with asyncio.timeout(60):
            while True:
                ledger = self.served.ledger
                deltas = await ledger.read(lambda tx: tx.deltas.read(self.session, turn_id, after=0, limit=100))
                if len(deltas) >= 3:
                    return
                await asyncio.sleep(0.02)

    async def events(self) -> list[Event]:
        stored = await self.served.ledger.read(lambda tx: tx.events.read(self.session, limit=10_000))
        return [decode_event(item.type, item.version, item.payload) for item in stored]


@asynccontextmanager
async def _world(url: str, models: OpenAIServer, address: TemporalAddress, root: Path) -> AsyncIterator[World]:
    gateway = open_gateway(models.base_url)
    blobs = FileBlobStore(root / "blobs")
    try:
        async with running_stack(url, root) as served:
            working = await build_stack(served.ledger, served.notifier, blobs, gateway, None, address, AGENTS)
            yield World(served, working, models, await working.open(root))
    finally:
        await gateway.close()


async def _lossless(world: World, work: Work, losses: int, kills: int) -> None:
    """Turn after turn, until the clients have lost so many connections and workers have died so often."""
    chance = random.Random(SEED)
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(proxied(world.served.url.rpartition("/")[2])) for _ in range(3)]
        clients = [Client(world.session, proxy, SEED + number) for number, proxy in enumerate(proxies)]
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(client.follow()) for client in clients]
            killed, turn_id = 0, ""
            for _ in range(40):
                turn_id = await world.turn(work, chance, kill=killed < kills)
                killed += killed < kills
                if sum(sum(client.lost.values()) for client in clients) >= losses and killed == kills:
                    break
            async with asyncio.timeout(60):
                while not all(turn_id in client.transcript.ended for client in clients):
                    await asyncio.sleep(0.02)
            for task in following:
                task.cancel()
    lost = {name: sum(client.lost[name] for client in clients) for name in ("websocket", "events")}
    assert min(lost.values()) >= losses / 5 and sum(lost.values()) >= losses, lost
    events = await world.events()
    called = {event.effect_id: event for event in events if isinstance(event, ModelCalled)}
    assert [event for event in events if isinstance(event, ModelRetried)], "no provider has failed"
    late = Client(world.session, proxies[0], 0)
    async for frame in world.served.services.live.follow(world.session, Cursor(), until_turn=turn_id):
        late.transcript.apply({"type": frame.type, "cursor": str(frame.cursor), "data": frame.data})
    for client in (*clients, late):
        shown = client.transcript
        assert shown.seqs == list(range(1, len(events) + 1))
        assert shown.types == [event.TYPE for event in events]
        assert shown.final.keys() == called.keys()
        for call, event in called.items():
            assert shown.final[call].encode() == event.message.text.encode()
            # What a client has put together from pieces is a beginning of it, the last pieces excepted.
            assert event.message.text.startswith(shown.texts.get(call, ""))
    assert any(client.transcript.texts for client in clients), "nobody has seen any text while it came"
    assert sum(client.transcript.superseded for client in clients) > 0


async def test_a_few_lost_connections(
    sqlite_url: str, model_server: OpenAIServer, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    async with _world(sqlite_url, model_server, temporal_address, tmp_path) as world:
        await _lossless(world, lambda: world.working.worker(grace=0.0), losses=15, kills=0)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(600)
async def test_a_hundred_lost_connections_and_dead_workers(
    postgres_url: str, model_server: OpenAIServer, temporal_address: TemporalAddress, tmp_path: Path
) -> None:
    async with _world(postgres_url, model_server, temporal_address, tmp_path) as world:
        log, blobs = str(tmp_path / "worker.log"), str(tmp_path / "blobs")
        orders = Orders(postgres_url, blobs, model_server.base_url, temporal_address, log)
        await _lossless(world, lambda: worker.running(orders), losses=100, kills=3)
