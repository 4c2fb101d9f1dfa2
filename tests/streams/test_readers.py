"""Many readers of one Session: what they cost Temporal, what they leave behind, and what keeps them connected."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from milepost.services import live as live_module
from milepost.services.turns import BeginTurn
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.api.readers import BEARER, Transcript, sse_events
from tests.api.stack import Stack as Served
from tests.api.stack import running_stack
from tests.streams.worker import AGENTS, open_gateway
from tests.support.openai_server import OpenAIServer
from tests.support.proxy import Proxy, proxied
from tests.support.temporal import build_stack
from workers.process import WorkerProcess, embedded_queues

LOOK_SECONDS = 1.0


def _sockets() -> int:
    """Open sockets of this process. (Files are no measure: the ledger opens some when it is first read in parallel.)"""
    found = 0
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(handle.readlink()).startswith("socket:")
    return found


async def _read(connection: ClientConnection, transcript: Transcript) -> None:
    async for message in connection:
        transcript.apply(json.loads(message))


async def _story(served: Served, session: str) -> str:
    """A turn of two calls, written as a worker would, without any word to Temporal."""
    work = served.work(session, (await served.services.turns.begin(BeginTurn(session, "do it"))).turn.turn_id)
    await work.claim()
    await work.start_agent()
    for _ in range(2):
        spec, attempt = await work.start_call()
        for n in range(10):
            await work.say(spec, attempt, 5 * n, "word ")
        await work.finish_call(spec, attempt, "word " * 10)
    await work.end()
    return work.turn_id


async def _quiet(temporal: Proxy) -> int:
    """Wait until nothing is asked of Temporal for a while: all polls wait. Returns how much was asked so far."""
    async with asyncio.timeout(60):
        seen = -1
        while seen != temporal.requests:
            seen = temporal.requests
            await asyncio.sleep(LOOK_SECONDS)
    return seen


@pytest.mark.timeout(240)
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
async def test_readers_cost_temporal_nothing(
    sqlite_url: str, model_server: OpenAIServer, temporal_address: TemporalAddress, tmp_path: Path, count: int
) -> None:
    async with AsyncExitStack() as stack:
        temporal = await stack.enter_async_context(proxied(temporal_address.target))
        served = await stack.enter_async_context(running_stack(sqlite_url, tmp_path))
        gateway = open_gateway(model_server.base_url)
        stack.push_async_callback(gateway.close)
        address = replace(temporal_address, target=temporal.address)
        blobs = FileBlobStore(tmp_path / "blobs")
        working = await build_stack(served.ledger, served.notifier, blobs, gateway, None, address, AGENTS)
        worker = WorkerProcess(
            working.parts,
            working.client,
            working.starter,
            embedded_queues(),
            reconcile_seconds=3600,
        )
        # Its pollers only: its loops would ask Temporal about the turns that are merely told here.
        await worker._runtime.start()
        stack.push_async_callback(worker._runtime.stop)
        session = await served.open_session()
        polls, began = await _quiet(temporal), time.monotonic()
        assert polls > 0, "the worker goes past the counter"
        await _story(served, session)
        alone = temporal.requests - polls
        sockets = _sockets()

        url = f"{served.ws_url}?session={session}&after=0"
        transcripts = [Transcript() for _ in range(count)]
        async with AsyncExitStack() as readers, asyncio.TaskGroup() as group:
            tasks = []
            for transcript in transcripts:
                connection = await readers.enter_async_context(connect(url, additional_headers=BEARER, max_size=None))
                tasks.append(group.create_task(_read(connection, transcript)))
            assert served.app.state.live_readers.count == count
            last = await _story(served, session)
            async with asyncio.timeout(60):
                while not all(last in transcript.ended for transcript in transcripts):
                    await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
        # A poll that has waited for a minute is made again, readers or not.
        again = polls * int((time.monotonic() - began) / 50)
        assert alone <= temporal.requests - polls - alone <= alone + again
        async with asyncio.timeout(60):
            while served.app.state.live_readers.count or _sockets() > sockets:
                await asyncio.sleep(0.05)
        assert session not in served.notifier._subscriptions
        assert {transcript.cursor for transcript in transcripts} == {transcripts[0].cursor}


@pytest.mark.parametrize("cut", [True, False], ids=["without keep-alives", "with keep-alives"])
async def test_a_proxy_that_cuts_what_is_idle_cuts_no_reader(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    """In a tenth of the time: proxies cut after 15 s and more, so that readers hear something every 10 s."""
    assert live_module.KEEPALIVE_SECONDS <= 15 / 1.5
    monkeypatch.setattr(live_module, "KEEPALIVE_SECONDS", 100.0 if cut else live_module.KEEPALIVE_SECONDS / 10)
    async with running_stack(sqlite_url, tmp_path) as served:
        session = await served.open_session()
        async with proxied(served.url.rpartition("/")[2], idle_seconds=1.5) as proxy, AsyncExitStack() as stack:
            url = f"ws://{proxy.address}/api/v1/ws?session={session}"
            # The client's own pings would keep the connection busy.
            socket = await stack.enter_async_context(connect(url, additional_headers=BEARER, ping_interval=None))
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://{proxy.address}", headers=BEARER, timeout=30)
            )
            events = await stack.enter_async_context(aclosing(sse_events(client, session)))

            async def over_socket() -> int:
                return [json.loads(await socket.recv())["type"] for _ in range(5)].count("keepalive")

            async def over_events() -> int:
                return [data async for _, _, data in _first(events, 5)].count(": keepalive")

            results = await asyncio.gather(over_socket(), over_events(), return_exceptions=True)
    if cut:
        assert isinstance(results[0], ConnectionClosed) and isinstance(results[1], httpx.HTTPError)
        assert proxy.cut_idle == 2
    else:
        assert results == [3, 3]
        assert proxy.cut_idle == 0


async def _first(events: object, count: int) -> object:
    async for event in events:  # type: ignore[attr-defined]
        yield event
        count -= 1
        if not count:
            return
