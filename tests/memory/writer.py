"""A process that edits memory beside others: `python -m tests.memory.writer PLACE WHAT NAME COUNT`.

It appends COUNT lines to the shared block 'team', or COUNT entries to a daily log, and prints how many it wrote.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

from milepost.domain.memory import BlockSpec, DailyEntry, Scope
from milepost.services.blocks import Author, BlockService, appended
from milepost.storage import open_ledger, open_notifier
from tests.memory.conftest import Stores, stores_at

TEAM = BlockSpec("team", "What all know.", limit=20_000, shared=True)
LOG = Scope.agent("ses_1", "logger")


async def write(stores: Stores, what: str, name: str, count: int) -> int:
    if what == "block":
        service = BlockService(stores.ledger, stores.blocks)
        for number in range(count):
            author = Author(f"agent:{name}", f"{name}/{number}", number)
            await service.edit(Scope.agent("ses_1", name), TEAM, author, appended(f"{name} {number}"))
    else:
        for number in range(count):
            await stores.daily.append(LOG, [DailyEntry(f"{name}.{number}", number, "note", name, "x" * 200)])
    return count


async def main(place: str, ledger_url: str, what: str, name: str, count: int) -> None:
    async with AsyncExitStack() as stack:
        notifier = await open_notifier(ledger_url)
        stack.push_async_callback(notifier.close)
        ledger = await open_ledger(ledger_url, notifier)
        stack.push_async_callback(ledger.close)
        print(await write(stores_at(place, ledger), what, name, count))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))
