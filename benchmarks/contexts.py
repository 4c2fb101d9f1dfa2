"""A long scripted Session with planted facts, some of which its summaries lose: tokens, compactions, what is found.

Usage: python -m benchmarks.contexts [--turns 300] [--window 32000 ...] [--json]

A turn runs one command that prints about 2,400 characters and answers in a sentence. The last turns ask for facts that
were printed in the middle of outputs long before. Calls no model; everything else is the product on SQLite.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from milepost.storage import upgrade
from tests.context.planted import Report, play


async def measure(turns: int, window: int) -> Report:
    """Play one Session in a ledger of its own."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/ledger.db"
        await upgrade(url)
        return await play(url, Path(folder), turns, window)


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--window", type=int, nargs="+", default=[16_000, 32_000, 128_000])
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    for window in chosen.window:
        report = asyncio.run(measure(chosen.turns, window))
        if chosen.json:
            print(json.dumps(asdict(report) | {"window": window}))
            continue
        print(
            f"window {window:,}: {report.turns} turns, {report.calls} calls, {report.sent:,} tokens sent "
            f"({report.uncompacted:,} without compaction; {report.reusable / report.sent:.0%} at the beginning of the "
            f"request before), largest {report.largest:,}; {report.compactions} compactions, {report.summaries} with a "
            f"summary, {report.breaks} changed prefixes; {report.planted} facts, {report.dropped} lost by summaries, "
            f"found: {dict(report.found)}, wrong: {len(report.wrong)}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
