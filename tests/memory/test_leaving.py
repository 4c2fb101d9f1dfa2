"""A worker that is stopped first writes what its last turns leave for memory, for a bounded time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from milepost.bootstrap.system import SystemClock
from milepost.ports.ledger import WorkerBeat
from tests.support.databases import OpenLedger
from workers import loops
from workers.loops import Loops


class _Idle:
    async def run_once(self) -> int:
        return 0

    async def release(self) -> None:
        return


async def _nothing() -> None:
    return


def made(opened: OpenLedger, remember: Any) -> Loops:
    def beat(at: int) -> WorkerBeat:
        return WorkerBeat("w", "host", (), at)

    idle: Any = _Idle()
    return Loops(opened.ledger, opened.notifier, SystemClock(), idle, idle, beat, _nothing, 30.0, remember)


async def test_what_comes_while_the_worker_drains_is_written(opened: OpenLedger) -> None:
    due, written, passes = ["a"], [], 0

    async def remember() -> int:
        nonlocal passes
        passes += 1
        while due:
            await asyncio.sleep(0.1)
            written.append(due.pop(0))
        return 0

    running = made(opened, remember)
    await running.start()
    await asyncio.sleep(0.05)
    await running.drain()
    due.append("b")
    await running.stop()
    assert written == ["a", "b"] and not due
    told = passes
    await asyncio.sleep(0.1)
    assert passes == told, "nothing is written after the end"


async def test_what_takes_too_long_is_left_to_the_next_one(opened: OpenLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "REST_SECONDS", 0.2)
    ended = asyncio.Event()

    async def hang() -> int:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return 0

    running = made(opened, hang)
    await running.start()
    await asyncio.sleep(0.05)
    await asyncio.wait_for(running.stop(), 10)
    assert ended.is_set()
