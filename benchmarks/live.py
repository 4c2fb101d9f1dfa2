"""A delta from the ledger to WebSocket and server-sent events clients, and a POST beside the transaction behind it.

Usage: python -m benchmarks.live [--pieces N] [--readers N] [--accepts N] [--json]

One process: ledger (SQLite, `synchronous=FULL`, in a temporary folder), hub, HTTP server and clients share one event
loop, so the clients' own work is part of every number. A piece of text is written every 30 ms, as a model call does.
`written` counts from the call that writes the piece (the durable commit is in it), `committed` from its return: what
the live path adds. `accept` is POST .../turns to its 202 on a kept connection, by a client that does next to nothing;
`begin` is the same use case without HTTP, alternating with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.services.turns import BeginTurn
from milepost.storage import upgrade
from tests.api.readers import socket, sse_events
from tests.api.stack import TOKEN, Stack, Work, running_stack

MAX_PIECES = 5_000
MAX_READERS = 200
MAX_ACCEPTS = 2_000
LIMIT_SECONDS = 240
PIECE_SECONDS = 0.03


@dataclass
class Times:
    """Moments by piece, in seconds of one monotonic clock."""

    written: dict[int, float] = field(default_factory=dict)
    committed: dict[int, float] = field(default_factory=dict)
    received: list[tuple[int, float]] = field(default_factory=list)

    def note(self, text: str) -> bool:
        """Note a frame; True for the last piece."""
        now = time.perf_counter()
        frame = json.loads(text)
        if frame["type"] != "delta":
            return False
        piece = int(frame["data"]["text"])
        self.received.append((piece, now))
        return piece == -1

    def summary(self) -> dict[str, float]:
        pieces = [(piece, at) for piece, at in self.received if piece >= 0]
        written = sorted((at - self.written[piece]) * 1000 for piece, at in pieces)
        # A reader may have a piece before the writer's task runs again.
        committed = sorted(max(0.0, at - self.committed[piece]) * 1000 for piece, at in pieces)
        return {"pieces": float(len(pieces))} | _percentiles("written", written) | _percentiles("committed", committed)


def _percentiles(name: str, sorted_ms: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(sorted_ms, n=100)
    return {f"{name}_p50_ms": cuts[49], f"{name}_p95_ms": cuts[94], f"{name}_max_ms": sorted_ms[-1]}


async def _read_socket(stack: Stack, session: str, times: Times, ready: asyncio.Semaphore) -> None:
    async with socket(stack, session) as connection:
        await connection.recv()
        ready.release()
        while not times.note(str(await connection.recv())):
            pass


async def _read_events(stack: Stack, session: str, times: Times, ready: asyncio.Semaphore) -> None:
    async for _, name, data in sse_events(stack.client, session):
        if name == "snapshot":
            ready.release()
        elif times.note(data):
            return


async def _deltas(stack: Stack, kind: Any, readers: int, pieces: int) -> dict[str, float]:
    session = await stack.open_session()
    work = stack.work(session, (await stack.begin(session))["turn_id"])
    await work.start_agent()
    spec, attempt = await work.start_call()
    times, ready = Times(), asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for _ in range(readers):
            group.create_task(kind(stack, session, times, ready))
        for _ in range(readers):
            await ready.acquire()
        await asyncio.sleep(0.5)
        for piece in range(pieces):
            times.written[piece] = time.perf_counter()
            await work.say(spec, attempt, piece, str(piece))
            times.committed[piece] = time.perf_counter()
            await asyncio.sleep(PIECE_SECONDS)
        await work.say(spec, attempt, pieces, "-1")
    return times.summary()


async def _accepts(stack: Stack, count: int) -> dict[str, float]:
    over_http: list[float] = []
    direct: list[float] = []
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.server.port)
    body = json.dumps({"text": "do it"}).encode()
    for _ in range(count):
        session = await stack.open_session()
        head = (
            f"POST /api/v1/sessions/{session}/turns HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        started = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length"))
        turn = json.loads(await reader.readexactly(int(length.split(b":")[1])))
        over_http.append((time.perf_counter() - started) * 1000)
        assert answer.startswith(b"HTTP/1.1 202 "), answer
        await Work(stack.ledger, session, turn["turn_id"]).end()
        started = time.perf_counter()
        await stack.services.turns.begin(BeginTurn(session, "do it"))
        direct.append((time.perf_counter() - started) * 1000)
    writer.close()
    return _percentiles("accept", sorted(over_http)) | _percentiles("begin", sorted(direct))


async def _measure(pieces: int, readers: int, accepts: int) -> dict[str, dict[str, float]]:
    async with AsyncExitStack() as closing, asyncio.timeout(LIMIT_SECONDS):
        root = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        url = f"sqlite:///{root}/ledger.db"
        await upgrade(url)
        stack = await closing.enter_async_context(running_stack(url, root))
        return {
            "websocket, 1 reader": await _deltas(stack, _read_socket, 1, pieces),
            f"websocket, {readers} readers": await _deltas(stack, _read_socket, readers, pieces),
            "events, 1 reader": await _deltas(stack, _read_events, 1, pieces),
            "accept": await _accepts(stack, accepts),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pieces", type=int, default=500)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--accepts", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pieces = max(10, min(options.pieces, MAX_PIECES))
    readers = max(1, min(options.readers, MAX_READERS))
    results = asyncio.run(_measure(pieces, readers, max(10, min(options.accepts, MAX_ACCEPTS))))
    if options.json:
        print(json.dumps(results))
        return
    for name, values in results.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.1f}" for key, value in values.items()))


if __name__ == "__main__":
    main()
