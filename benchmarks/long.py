"""A long Session: what a turn costs at its beginning and at its end, and what is stored beside what was said.

Usage: python -m benchmarks.long [--turns N] [--output BYTES | --mixed] [--folder DIR] [--json]

Turns are driven through the real services and activities, one command and one answer each, without Temporal and on
SQLite (`tests/support/driven.py`). `--folder` should be in memory (/dev/shm): fsync is not what is measured here.
Begins are measured in windows of 100 turns, in turn with those of a short Session of the same ledger, and as
instructions of SQLite's virtual machine, which no neighbor on the machine can disturb.

`kept` is the ledger's tables with the blobs as they lie on disk; indexes, also the search index, are told apart, and so
is what a ledger without any Session takes. What it is compared with: every distinct payload of an event (canonical
JSON), of the parts that repeat one, and every blob, each compressed alone by zlib at the ledger's level, without the
ledger's dictionary. `said and printed` is stricter: of the requests, answers, arguments and outputs only, nothing of
what records them.

With `--mixed` 90 % of the commands print 2 kB, 9 % 40 kB (shortened for the model) and 1 % 500 kB (kept as blobs).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from milepost.storage import open_ledger, open_notifier, upgrade
from tests.support.driven import AGENT, CountedLedger, Driver, Work, short_memory, stored, unique_payloads

WINDOW = 100
MAX_TURNS = 20_000
LIMIT_SECONDS = 3_600
FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


class _Measure:
    def __init__(self, driver: Driver, ledger: CountedLedger, session: str) -> None:
        self.driver = driver
        self.ledger = ledger
        self.session = session

    async def window(self) -> dict[str, float]:
        """A window of turns whose begins are timed, then one begin and one read of the model's context in work."""
        driver, times = self.driver, []
        with short_memory(0):
            for _ in range(WINDOW):
                start = time.perf_counter()
                turn = await driver.begin(self.session)
                times.append(1000 * (time.perf_counter() - start))
                await driver.prepare(self.session, turn)
                await driver.answer(self.session, turn)
        self.ledger.work = begin = Work()
        turn = await driver.begin(self.session)
        self.ledger.work = None
        await driver.prepare(self.session, turn)
        reads = []
        for _ in range(5):
            start = time.perf_counter()
            context = await driver.conversations.whole(turn, AGENT, 1)
            reads.append(1000 * (time.perf_counter() - start))
        self.ledger.work = read = Work()
        await driver.conversations.whole(turn, AGENT, 1)
        self.ledger.work = None
        with short_memory(0):
            await driver.answer(self.session, turn)
        return {
            "begin p50 ms": round(statistics.median(times), 3),
            "begin p95 ms": round(statistics.quantiles(times, n=20)[18], 3),
            "begin instructions": begin.instructions,
            "context messages": len(context.messages),
            "context first read ms": round(reads[0], 1),
            "context p50 ms": round(statistics.median(reads), 1),
            "context instructions": read.instructions,
        }

    async def paired(self, short: str) -> dict[str, float]:
        """Begins of a short Session and of the long one in turn, so that the machine's mood hits both alike."""
        driver, times = self.driver, {short: [], self.session: []}
        with short_memory(0):
            for _ in range(WINDOW):
                for session, found in times.items():
                    start = time.perf_counter()
                    turn = await driver.begin(session)
                    found.append(1000 * (time.perf_counter() - start))
                    await driver.prepare(session, turn)
                    await driver.answer(session, turn)
        little, much = (statistics.median(times[session]) for session in (short, self.session))
        return {
            "begin p50 ms, short": round(little, 3),
            "begin p50 ms, long": round(much, 3),
            "long / short": round(much / little, 3),
        }


async def measure(turns: int, size: Callable[[], int], folder: Path) -> dict[str, dict[str, float]]:
    url = f"sqlite:///{folder}/ledger.db"
    await upgrade(url)
    empty = (await asyncio.to_thread(stored, folder)).kept
    notifier = await open_notifier(url)
    ledger = CountedLedger(await open_ledger(url, notifier))
    driver = Driver(ledger, notifier, folder, size)
    session = await driver.open()
    measure = _Measure(driver, ledger, session)
    try:
        with short_memory(0):
            for _ in range(WINDOW):
                await driver.turn(session)
        results = {f"after {WINDOW} turns": await measure.window()}
        done = 2 * WINDOW + 1
        with short_memory(0):
            while done + WINDOW + 1 < turns:
                await driver.turn(session)
                done += 1
        results[f"after {done} turns"] = await measure.window()
        short = await driver.open()
        with short_memory(0):
            for _ in range(WINDOW):
                await driver.turn(short)
        results[f"{WINDOW} begins in turn with those of a Session of {WINDOW} turns"] = await measure.paired(short)
        payloads = await unique_payloads(ledger, [session, short], folder)
    finally:
        await ledger.close()
    found = await asyncio.to_thread(stored, folder)
    said = driver.unique
    results["stored"] = {
        "said and printed, MB": round(said.plain / 1e6, 2),
        "said and printed, compressed, MB": round(said.compressed / 1e6, 2),
        "payloads, MB": round(payloads.plain / 1e6, 2),
        "payloads, compressed, MB": round(payloads.compressed / 1e6, 2),
        "an empty ledger, MB": round(empty / 1e6, 2),
        "kept beyond that, MB": round((found.kept - empty) / 1e6, 2),
        "kept / payloads, compressed": round((found.kept - empty) / payloads.compressed, 3),
        "kept / said and printed, compressed": round((found.kept - empty) / said.compressed, 2),
        "kept / said and printed": round((found.kept - empty) / said.plain, 2),
        "blobs, MB": round(found.blobs / 1e6, 2),
        "indexes, MB": round(found.indexes / 1e6, 2),
        **{
            f"table {name}, MB": round(size / 1e6, 2)
            for name, size in sorted(found.tables.items(), key=lambda item: -item[1])[:6]
        },
    }
    return results


def _sizes(output: int, *, mixed: bool) -> Callable[[], int]:
    """Characters of one command after the other; always the same ones."""
    if not mixed:
        return lambda: output
    hundred = [2_000] * 90 + [40_000] * 9 + [500_000]
    random.Random(1).shuffle(hundred)
    return itertools.cycle(hundred).__next__


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=10_000, help=f"at least 400, at most {MAX_TURNS}")
    parser.add_argument("--output", type=int, default=10_000, help="bytes that each command prints")
    parser.add_argument("--mixed", action="store_true", help="few commands print most of what is printed")
    parser.add_argument("--folder", default=FOLDER)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    turns, output = min(max(options.turns, 400), MAX_TURNS), min(max(options.output, 100), 1_000_000)
    with tempfile.TemporaryDirectory(prefix="milepost-long-", dir=options.folder) as folder:
        async with asyncio.timeout(LIMIT_SECONDS):
            results = await measure(turns, _sizes(output, mixed=options.mixed), Path(folder))
    if options.json:
        print(json.dumps(results))
        return
    for title, figures in results.items():
        print(f"## {title}")
        for name, value in figures.items():
            print(f"{name:32} {value}")


if __name__ == "__main__":
    asyncio.run(main())
