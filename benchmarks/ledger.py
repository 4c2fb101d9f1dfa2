"""One event appended to the ledger, beside a bare driver insert into the same table in the same run.

Usage: python -m benchmarks.ledger [--appends N] [--folder DIR] [--url postgresql://...] [--json]

Both sides alternate, so that the machine's mood hits both. SQLite files and, without `--url`, a temporary PostgreSQL
server lie in `--folder`, which should be on the disk to measure. The bare SQLite insert (synchronous=FULL) is measured
on the event loop's own thread, which it blocks, and from a thread, which is what an asyncio program can afford.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg

from milepost.domain.content import Content
from milepost.domain.events import AttemptStarted, StreamKind
from milepost.ports.ledger import Ledger, NewEvent
from milepost.storage import Hub, open_ledger, upgrade

AT_ONCE = 16
MAX_APPENDS = 20_000
LIMIT_SECONDS = 300
ROUNDS = 5
EVENT = AttemptStarted("attempt", Content("x" * 250), 3)
PAYLOAD = b"p" * 300
COLUMNS = 10


@dataclass(frozen=True)
class Row:
    """Latencies in milliseconds, one at a time; `per_second` with 16 writers at once."""

    name: str
    p50: float
    p99: float
    per_second: float | None = None


Insert = Callable[[int], Awaitable[Any]]


async def _times(insert: Insert, first: int, count: int) -> list[float]:
    times: list[float] = []
    for number in range(first, first + count):
        start = time.perf_counter()
        await insert(number)
        times.append((time.perf_counter() - start) * 1000)
    return times


async def _throughput(append: Callable[[str, int], Awaitable[Any]], count: int) -> float:
    async def writer(writer: int) -> None:
        for number in range(count // AT_ONCE):
            await append(f"attempt_{writer}", number)

    start = time.perf_counter()
    await asyncio.gather(*(writer(n) for n in range(AT_ONCE)))
    return count // AT_ONCE * AT_ONCE / (time.perf_counter() - start)


async def _compare(ledger: Ledger, bare: dict[str, Insert], label: str, appends: int) -> list[Row]:
    async def append(stream: str, number: int) -> None:
        new = [NewEvent(f"k{number}", EVENT, "turn")]
        await ledger.write(lambda tx: tx.events.append(stream, StreamKind.ATTEMPT, new, 1))

    ways: dict[str, Insert] = {**bare, f"{label}: ledger append": lambda number: append("attempt_alone", number)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    share = appends // ROUNDS
    for insert in ways.values():
        await _times(insert, 1, 50)  # warm
    for round_ in range(ROUNDS):
        for name, insert in ways.items():
            times[name] += await _times(insert, 51 + round_ * share, share)
    rows = [
        Row(name, statistics.median(found), statistics.quantiles(found, n=100)[98]) for name, found in times.items()
    ]
    per_second = await _throughput(append, appends)
    return [*rows[:-1], Row(rows[-1].name, rows[-1].p50, rows[-1].p99, per_second)]


def _values(stream: int, seq: int) -> tuple[Any, ...]:
    return (stream, seq, b"k%08d" % seq, "attempt.started", 1, 1, 1, 0, PAYLOAD, b"h" * 32)


async def _sqlite(folder: Path, appends: int) -> list[Row]:
    path = folder / "ledger.db"
    await upgrade(f"sqlite:///{path}")
    ledger = await open_ledger(f"sqlite:///{path}", Hub())
    conn = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    conn.execute("PRAGMA synchronous = FULL")
    conn.execute("PRAGMA busy_timeout = 10000")
    blocks, apart = 1_000_001, 1_000_002
    for stream in (blocks, apart):
        conn.execute("INSERT INTO identifiers VALUES (?, ?)", (stream, f"bare-{stream}"))
    statement = f"INSERT INTO events VALUES ({', '.join('?' * COLUMNS)})"
    loop = asyncio.get_running_loop()

    async def blocking(number: int) -> None:
        conn.execute(statement, _values(blocks, number))

    with ThreadPoolExecutor(1) as thread:

        async def threaded(number: int) -> None:
            await loop.run_in_executor(thread, conn.execute, statement, _values(apart, number))

        bare: dict[str, Insert] = {"SQLite: bare insert, blocking": blocking, "SQLite: bare insert, thread": threaded}
        rows = await _compare(ledger, bare, "SQLite", appends)
    conn.close()
    await ledger.close()
    return rows


async def _postgres(url: str, appends: int) -> list[Row]:
    await upgrade(url)
    ledger = await open_ledger(url, Hub())
    conn = await asyncpg.connect(url, timeout=10)
    await conn.execute("INSERT INTO identifiers VALUES (1000001, 'bare')")
    statement = f"INSERT INTO events VALUES ({', '.join(f'${n + 1}' for n in range(COLUMNS))})"
    bare: dict[str, Insert] = {
        "PostgreSQL: bare insert": lambda number: conn.execute(statement, *_values(1_000_001, number))
    }
    rows = await _compare(ledger, bare, "PostgreSQL", appends)
    await conn.close()
    await ledger.close()
    return rows


async def _measure(arguments: argparse.Namespace, folder: Path) -> list[Row]:
    async with asyncio.timeout(LIMIT_SECONDS):
        rows = await _sqlite(folder, arguments.appends)
        if arguments.url:
            return [*rows, *await _postgres(arguments.url, arguments.appends)]
        from tests.support.postgres_server import find_binaries, running_server

        binaries = find_binaries()
        if binaries is None:
            return rows
        with running_server(binaries, arguments.folder) as server:
            return [*rows, *await _postgres(server.url(server.create_database()), arguments.appends)]


def _table(rows: list[Row]) -> str:
    lines = ["| | p50 ms | p99 ms | times the bare p50 | per s at 16 |", "|---|---|---|---|---|"]
    bare = {row.name.split(":")[0]: row.p50 for row in reversed(rows) if "bare" in row.name}
    for row in rows:
        times = row.p50 / bare[row.name.split(":")[0]]
        per_second = f"{row.per_second:,.0f}" if row.per_second else ""
        lines.append(f"| {row.name} | {row.p50:.2f} | {row.p99:.2f} | {times:.1f} | {per_second} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=2000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--url", help="an empty PostgreSQL database; without it a temporary server is started")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.appends = min(max(arguments.appends, 100), MAX_APPENDS)
    with tempfile.TemporaryDirectory(prefix="milepost-ledger-", dir=arguments.folder) as folder:
        rows = asyncio.run(_measure(arguments, Path(folder)))
    print(json.dumps([asdict(row) for row in rows]) if arguments.json else _table(rows))


if __name__ == "__main__":
    main()
