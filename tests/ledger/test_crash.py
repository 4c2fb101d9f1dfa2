"""Writers that are killed: what was acknowledged is there, and nothing is there by half."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from milepost.ledger.chain import StoredEvent, verify_chain
from milepost.ports.ledger import Ledger
from tests.ledger.appender import SHARED
from tests.ledger.samples import sql
from tests.support.databases import OpenLedger

ROOT = Path(__file__).parents[2]
WRITERS = 6


async def _start(url: str, name: str, writers: int, count: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.ledger.appender", url, name, str(writers), str(count)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )


async def _killed_after(url: str, name: str, lines: int) -> set[str]:
    """Kill a writer process after it acknowledged `lines` transactions; return all it acknowledged."""
    process = await _start(url, name, WRITERS, 100_000)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        acknowledged = [await process.stdout.readline() for _ in range(lines)]
        process.kill()
        acknowledged += (await process.stdout.read()).splitlines(keepends=True)
        await process.wait()
    return {line.decode().strip() for line in acknowledged if line.endswith(b"\n")}


async def _all_events(ledger: Ledger, stream: str) -> list[StoredEvent]:
    events: list[StoredEvent] = []
    while True:
        after = len(events)
        page = await ledger.read(lambda tx, after=after: tx.events.read(stream, after=after, limit=5000))
        if not page:
            return events
        events += page


async def _check(opened: OpenLedger, acknowledged: set[str]) -> None:
    shared = await _all_events(opened.ledger, SHARED)
    keys = {event.key for event in shared}
    assert acknowledged <= keys
    assert verify_chain(shared) == await opened.ledger.read(lambda tx: tx.events.head(SHARED))
    outbox = {subject for (subject,) in sql(opened.url, "SELECT subject FROM outbox")}
    assert outbox == keys
    own: set[str] = set()
    for stream in {f"run_{key.replace('/', '_').rsplit('_', 1)[0]}" for key in keys}:
        events = await _all_events(opened.ledger, stream)
        assert verify_chain(events)[0] == len(events)
        own |= {event.key for event in events}
    assert own == keys


async def test_a_killed_writer_loses_nothing_it_acknowledged(opened: OpenLedger) -> None:
    acknowledged: set[str] = set()
    for n, lines in enumerate((1, 40, 150)):
        killed = await _killed_after(opened.url, f"kill{n}", lines)
        assert len(killed) >= lines
        acknowledged |= killed
        await _check(opened, acknowledged)


async def test_processes_at_once_on_one_ledger(opened: OpenLedger) -> None:
    """On SQLite a second process is not how the product runs, but it must not damage or be turned away."""
    processes = [await _start(opened.url, f"p{n}", WRITERS, 40) for n in range(2)]
    running = asyncio.gather(*(process.communicate() for process in processes))
    async with asyncio.timeout(90):
        while not running.done():
            assert await opened.ledger.write(lambda tx: tx.leases.acquire("mine", "me", 1, 1))
            await asyncio.sleep(0.01)
    assert [process.returncode for process in processes] == [0, 0]
    acknowledged = {line.decode() for output, _ in await running for line in output.splitlines()}
    assert len(acknowledged) == 2 * WRITERS * 40
    await _check(opened, acknowledged)
