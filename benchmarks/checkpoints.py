"""What a checkpoint saves: reading the conversation for a turn's first model call, in a process that is new or not.

Usage: python -m benchmarks.checkpoints [--folder DIR] [--json]

Turns are driven through the real services and activities without Temporal, on SQLite (`tests/support/driven.py`), in
Sessions of several lengths. `ledger` reads all turns from the ledger, `checkpoint` begins with the newest checkpoint,
both in a process that knows nothing yet; `known` is the next read in the same process. `write` is the time a writer
takes behind the work for a whole conversation, and `again` for one that has one turn more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from milepost.ledger.checkpoint import decode_checkpoint, read_checkpoint
from milepost.memory.checkpoint_files import CheckpointFiles
from milepost.services.checkpointing import CheckpointKeeper
from milepost.storage import open_ledger, open_notifier, upgrade
from tests.support.driven import AGENT, Driver, short_memory

CASES = ((5, 2_000), (20, 2_000), (100, 2_000), (500, 2_000), (500, 12_000))
"""(turns, bytes that each prints)."""

ROUNDS = 5


async def _best(make: Callable[[], Awaitable[float]]) -> float:
    return min([await make() for _ in range(ROUNDS)])


async def measure(turns: int, output: int, folder: Path) -> dict[str, float]:
    """One Session."""
    url = f"sqlite:///{folder}/ledger.db"
    await upgrade(url)
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    store = CheckpointFiles(folder / "checkpoints" / "v1")

    def process(*, cached: bool) -> Driver:
        return Driver(ledger, notifier, folder, lambda: output, checkpoints=store if cached else None)

    async def read(driver: Driver, turn: str) -> float:
        start = time.perf_counter()
        await driver.conversations.whole(turn, AGENT, 1)
        return 1000 * (time.perf_counter() - start)

    driver = process(cached=False)
    session = await driver.open()
    with short_memory(0):
        for _ in range(turns - 1):
            await driver.turn(session)
    driver = process(cached=True)
    await driver.turn(session)
    await driver.conversations.close()
    turn = await driver.begin(session)
    await driver.prepare(session, turn)
    known = process(cached=False)
    await read(known, turn)
    path = max(store_path for store_path in (folder / "checkpoints").rglob("*.checkpoint"))
    checkpoint = decode_checkpoint(read_checkpoint(path.read_bytes()))

    async def write(*, again: bool) -> float:
        fresh = CheckpointFiles(folder / "other" / "v1")
        keeper = CheckpointKeeper(ledger, fresh)
        if again:
            keeper.save(replace(checkpoint, segments=checkpoint.segments[:-1]))
        start = time.perf_counter()
        await asyncio.to_thread(keeper.save, replace(checkpoint, seq=checkpoint.seq + again))
        spent = 1000 * (time.perf_counter() - start)
        for key in list(fresh.keys()):
            for file in fresh.files(key):
                fresh.discard(file)
        return spent

    result = {
        "file kB": round(path.stat().st_size / 1000, 1),
        "ledger ms": round(await _best(lambda: read(process(cached=False), turn)), 2),
        "checkpoint ms": round(await _best(lambda: read(process(cached=True), turn)), 2),
        "known ms": round(await _best(lambda: read(known, turn)), 2),
        "write ms": round(await _best(lambda: write(again=False)), 2),
        "again ms": round(await _best(lambda: write(again=True)), 2),
    }
    await ledger.close()
    await notifier.close()
    return result


async def main(folder: Path | None) -> dict[str, dict[str, float]]:
    """All cases."""
    results = {}
    for turns, output in CASES:
        with tempfile.TemporaryDirectory(dir=folder) as made:
            results[f"{turns} turns of {output / 1000:g} kB"] = await measure(turns, output, Path(made))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What a checkpoint saves.")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(main(options.folder))
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, values in found.items():
            print(name, " ".join(f"{key}={value}" for key, value in values.items()))
