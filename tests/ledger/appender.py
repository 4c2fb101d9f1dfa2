"""A process that appends until it is killed: `python -m tests.ledger.appender URL NAME WRITERS COUNT`.

Each transaction appends two events to two streams, one of them shared by all writers and processes, and adds an outbox
item. What was committed is acknowledged on standard output, one key per line, after the write returned.
"""

from __future__ import annotations

import asyncio
import os
import sys

from milepost.domain.events import RunStarted, StreamKind
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent, OutboxKind
from milepost.storage import Hub, open_ledger

SHARED = "run_shared"


def write_one(tx: LedgerTx, name: str, writer: int, number: int) -> None:
    key = f"{name}/{writer}/{number}"
    event = NewEvent(key, RunStarted(key, "x" * 200, {}))
    tx.events.append(f"run_{name}_{writer}", StreamKind.RUN, [event], number)
    tx.outbox.add(OutboxKind.START_TURN, key, number)
    tx.events.append(SHARED, StreamKind.RUN, [event], number)


async def _append(ledger: Ledger, name: str, writer: int, count: int) -> None:
    for number in range(count):
        await ledger.write(lambda tx, number=number: write_one(tx, name, writer, number))
        os.write(1, f"{name}/{writer}/{number}\n".encode())


async def _main(url: str, name: str, writers: int, count: int) -> None:
    ledger = await open_ledger(url, Hub())
    await asyncio.gather(*(_append(ledger, name, writer, count) for writer in range(writers)))
    await ledger.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
