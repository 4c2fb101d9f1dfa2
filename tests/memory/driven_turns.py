"""Does turns and rewinds in a Session, with checkpoints, until it is killed: `URL FOLDER SESSION SEED`."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from milepost.bootstrap.system import UuidIds
from milepost.memory.checkpoint_files import CheckpointFiles
from milepost.services.rewinds import RewindService, RewindTo
from milepost.storage import open_ledger, open_notifier
from tests.support.driven import Driver, SteppingClock

MAX_TURNS = 10_000


async def main(url: str, folder: Path, session: str, seed: int) -> None:
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    store = CheckpointFiles(folder / "checkpoints" / "v1")
    driver = Driver(ledger, notifier, folder, lambda: 3000, seed=seed, checkpoints=store)
    rewinds = RewindService(ledger, SteppingClock(), UuidIds())
    chosen = random.Random(seed)
    for _ in range(MAX_TURNS):
        await driver.turn(session)
        print("turn", flush=True)
        live = await ledger.read(lambda tx: tx.turns.live_before(session, 2**31 - 1, 10))
        if chosen.random() < 0.4 and len(live) > 4:
            await rewinds.rewind(RewindTo(session, "test", number=live[chosen.randrange(1, 4)][0]))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
