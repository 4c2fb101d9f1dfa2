"""History and search: pages of a long Session beside a short one, search over many texts, and what indexing costs.

Usage: python -m benchmarks.history [--turns N] [--folder DIR] [--json]

Runs on SQLite in `--folder`, which should be on the disk to measure. Indexing: turns are written with and without the
index, alternately, one transaction for each of their events as in real use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from milepost.domain.content import Content
from milepost.domain.events import AgentOutput, StreamKind
from milepost.domain.usage import Usage
from milepost.ports.ledger import Ledger, NewEvent
from milepost.services.history import HistoryService
from milepost.services.search import SearchRequest, SearchService
from milepost.storage import Hub, open_ledger, upgrade
from milepost.storage.search import SqlSearchIndex
from tests.history.build import Builder, Call, Said

MAX_TURNS = 20_000
LIMIT_SECONDS = 1_800
PAGE = 50
ROUNDS = 40
APPENDS = 400
WORDS = [f"{first}{last}" for first in ("al", "be", "co", "du", "en", "fu") for last in ("ra", "to", "mi", "ka", "sen")]


@dataclass(frozen=True)
class Row:
    """Milliseconds."""

    name: str
    p50: float
    p95: float


def _row(name: str, times: list[float]) -> Row:
    return Row(name, statistics.median(times), statistics.quantiles(times, n=20)[18])


async def _timed(name: str, work: Callable[[], Awaitable[Any]], rounds: int = ROUNDS) -> Row:
    await work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        await work()
        times.append((time.perf_counter() - start) * 1000)
    return _row(name, times)


def _text(chosen: random.Random, count: int) -> str:
    return " ".join(chosen.choices(WORDS, k=count))


async def _fill(builder: Builder, turns: int, chosen: random.Random) -> str:
    session = await builder.session(f"{turns} turns")
    for number in range(turns):
        call = Call("bash", json.dumps({"command": _text(chosen, 8)}), _text(chosen, 120))
        await builder.turn(session, Said(f"{_text(chosen, 40)} n{number}", _text(chosen, 150), [call]))
    return session


async def _pages(ledger: Ledger, short: str, long: str) -> list[Row]:
    history = HistoryService(ledger)
    times: dict[str, list[float]] = {short: [], long: []}
    for _ in range(ROUNDS):  # alternately, so that the machine's mood hits both
        for session, found in times.items():
            start = time.perf_counter()
            page = await history.page(session, limit=PAGE)
            found.append((time.perf_counter() - start) * 1000)
            if len(page.entries) != PAGE:
                raise AssertionError(len(page.entries))
    return [
        _row("History: 50 of 100 turns", times[short]),
        _row("History: 50 of the long Session", times[long]),
    ]


async def _searches(ledger: Ledger, session: str, turns: int) -> list[Row]:
    service = SearchService(ledger)
    cases = {
        "search: one rare word": SearchRequest(f"n{turns - 1}"),
        "search: one word that most texts have": SearchRequest("alra"),
        "search: three words and a phrase": SearchRequest('alra beto comi "duka ensen"'),
        "search: literal, found at once": SearchRequest("ra be", literal=True),
        "search: literal, in no text (one page)": SearchRequest("no such text", literal=True),
    }
    return [await _timed(name, lambda case=case: service.search(case), 15) for name, case in cases.items()]  # type: ignore[misc]


async def _indexing(builder: Builder, chosen: random.Random) -> list[Row]:
    session = await builder.session("indexing")
    add = SqlSearchIndex.add
    rows = []
    for size in (40, 400, 4_000):
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(APPENDS):
            indexed = number % 2 == 0
            output = AgentOutput("t", "a", Content(_text(chosen, size)), 1, Usage())
            new = [NewEvent(f"{size}/{number}", output)]
            SqlSearchIndex.add = add if indexed else lambda *_: None  # type: ignore[method-assign,assignment]
            start = time.perf_counter()
            await builder.ledger.write(lambda tx: tx.events.append(session, StreamKind.SESSION, new, 1))  # noqa: B023
            times[indexed].append((time.perf_counter() - start) * 1000)
        SqlSearchIndex.add = add  # type: ignore[method-assign]
        rows.append(_row(f"append an output of {size} words, not indexed", times[False]))
        rows.append(_row(f"append an output of {size} words, indexed", times[True]))
    return rows


async def _measure(arguments: argparse.Namespace, folder: Path) -> list[Row]:
    async with asyncio.timeout(LIMIT_SECONDS):
        url = f"sqlite:///{folder}/ledger.db"
        await upgrade(url)
        ledger = await open_ledger(url, Hub())
        chosen = random.Random(1)
        builder = Builder(ledger)
        try:
            rows = await _indexing(builder, chosen)
            short = await _fill(builder, 100, chosen)
            long = await _fill(builder, arguments.turns, chosen)
            rows += await _pages(ledger, short, long)
            return rows + await _searches(ledger, long, arguments.turns)
        finally:
            await ledger.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10_000, help="of the long Session")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    arguments.turns = min(max(arguments.turns, 100), MAX_TURNS)
    with tempfile.TemporaryDirectory(prefix="milepost-history-", dir=arguments.folder) as folder:
        rows = asyncio.run(_measure(arguments, Path(folder)))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print("| | p50 ms | p95 ms |\n|---|---|---|")
    for row in rows:
        print(f"| {row.name} | {row.p50:.2f} | {row.p95:.2f} |")


if __name__ == "__main__":
    main()
