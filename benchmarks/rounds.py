"""What one round of a turn costs as the turn gets longer: the ledger's work, and the time.

Usage: python -m benchmarks.rounds [--rounds N] [--output BYTES] [--json]

One turn of `--rounds` rounds, each a model call and a command that prints `--output` characters, through the real
activities on SQLite, without Temporal. The work of a round is counted in instructions of SQLite's virtual machine,
which no neighbor on the machine can disturb; the time beside it also has what grows by nature with the request: its
canonical form and digest. Bound: the database work of the last tenth of the rounds at most 1.1 times that of the second
tenth (the first has what is new to the process).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from milepost.storage import open_ledger, open_notifier, upgrade
from tests.support.driven import CountedLedger, Driver, Work

MAX_ROUNDS = 5_000
PARTS = 10
GROWTH = 1.1


async def measure(rounds: int, output: int, folder: Path, *, counted: bool = True) -> dict[str, Any]:
    """Medians by tenths of the turn. Counting slows every instruction down, so times are of a turn of their own."""
    url = f"sqlite:///{folder / ('counted.db' if counted else 'timed.db')}"
    await upgrade(url)
    notifier = await open_notifier(url)
    ledger = CountedLedger(await open_ledger(url, notifier))
    driver = Driver(ledger, notifier, folder, lambda: output)
    works, times = [], []
    try:
        session = await driver.open()
        turn = await driver.begin(session)
        await driver.prepare(session, turn)
        for round_ in range(1, rounds + 1):
            ledger.work = work = Work() if counted else None
            begun = time.perf_counter()
            answer = await driver.ask(session, turn, round_, calls=True)
            await driver.run_calls(session, turn, round_, answer)
            times.append((time.perf_counter() - begun) * 1000)
            ledger.work = None
            works.append(work.instructions if work is not None else 0)
    finally:
        await driver.conversations.close()
        await ledger.close()
        await notifier.close()
    part = max(1, rounds // PARTS)
    tenths = range(0, part * PARTS, part)
    found = {
        "instructions": [round(statistics.median(works[at : at + part])) for at in tenths],
        "ms": [round(statistics.median(times[at : at + part]), 1) for at in tenths],
    }
    return {"instructions": found["instructions"]} if counted else {"ms": found["ms"]}


async def _both(rounds: int, output: int, folder: Path) -> dict[str, Any]:
    found = await measure(rounds, output, folder) | await measure(rounds, output, folder, counted=False)
    works = found["instructions"]
    return {"rounds": rounds, "output": output, **found, "within bounds": works[-1] <= GROWTH * works[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--output", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not PARTS <= options.rounds <= MAX_ROUNDS:
        parser.error(f"--rounds: {PARTS} to {MAX_ROUNDS}")
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_both(options.rounds, options.output, Path(folder)))
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    raise SystemExit(0 if found["within bounds"] else 1)


if __name__ == "__main__":
    main()
