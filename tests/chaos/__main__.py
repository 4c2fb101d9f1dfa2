"""The whole chaos suite: `python -m tests.chaos --seed N --kills 5 --database both`.

Prints a line per kill as it happens and, at the end, a Markdown table. The exit code is 0 only if every cell of the
matrix got all its kills and none left a trace. `--results FILE` keeps what is done; the same command goes on from it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from milepost.observability.logging import configure
from tests.chaos import apart
from tests.chaos.evidence import Fault
from tests.chaos.matrix import Cell, Result, cells, open_world, run_cell
from tests.chaos.points import Boundary
from tests.chaos.report import Line, report
from tests.chaos.shapes import VICTIMS
from tests.support.podman import running_service


class Run:
    """The cells that are still to be done, and what has come of the others."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.seed: int = options.seed
        self.kills: int = options.kills
        self._deadline = time.monotonic() + options.minutes * 60
        self._started = time.monotonic()
        self._file: Path | None = options.results
        self.lines: list[Line] = self._kept()
        databases = list(VICTIMS) if options.database == "both" else [options.database]
        self.wanted = [cell for database in databases for cell in cells(database) if _chosen(cell, options)]
        done = {line.cell for line in self.lines}
        self._left = {name: [cell for cell in self.wanted if cell.database == name and str(cell) not in done]
                      for name in databases}  # fmt: skip
        self._total = len(self.wanted) * self.kills

    def _kept(self) -> list[Line]:
        if self._file is None or not self._file.exists():
            return []
        found = [Line(**json.loads(text)) for text in self._file.read_text().splitlines()]
        ours = [line for line in found if (line.seed, line.kills) == (self.seed, self.kills)]
        # A cell that was broken off begins anew.
        counted = {line.cell: sum(other.cell == line.cell for other in ours) for line in ours}
        return [line for line in ours if counted[line.cell] == self.kills]

    def next(self, database: str) -> Cell | None:
        """A cell to do, unless the time is over."""
        left = self._left[database]
        return left.pop(0) if left and time.monotonic() < self._deadline else None

    def tell(self, result: Result) -> None:
        """Keep a result, and say so."""
        line = Line.of(result, self.seed, self.kills)
        self.lines.append(line)
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps(line.__dict__) + "\n")
        at = time.monotonic() - self._started
        outcome = "; ".join(line.faults) or "ok"
        print(f"{at:6.0f} s {len(self.lines):4}/{self._total} {line.kill}: {outcome}", flush=True)


def _chosen(cell: Cell, options: argparse.Namespace) -> bool:
    return options.victim in (None, cell.victim) and options.boundary in (None, cell.boundary.value)


async def lane(run: Run, database: str, podman_root: Path) -> None:
    """Do cells of a database, in one world as long as nothing is wrong in it."""
    while (cell := run.next(database)) is not None:
        async with open_world(database, podman_root) as world:
            while cell is not None:
                results = await run_cell(world, cell, run.kills, run.seed, run.tell)
                if results[-1].faults:
                    print(world.shape.home.words(), file=sys.stderr)
                    break
                cell = run.next(database)


async def run_all(run: Run, lanes: dict[str, int], podman_root: Path) -> None:
    """Every lane to its end; one that cannot go on must not end the others."""

    async def guarded(database: str) -> None:
        try:
            await lane(run, database, podman_root)
        except Exception as error:
            print(f"a lane broke off: {error!r}", file=sys.stderr, flush=True)

    await asyncio.gather(*(guarded(database) for database, count in lanes.items() for _ in range(count)))


def freeze(seconds: float) -> int:
    """Stop a worker of two, and an only one, with the product's own times; 0 if that leaves no trace."""

    async def both(podman_root: Path) -> list[Fault]:
        runs = (apart.frozen, apart.alone_and_frozen)
        told = await asyncio.gather(*(play(podman_root, seconds=seconds, shorten=False) for play in runs))
        return [fault for faults in told for fault in faults]

    with running_service() as podman_root:
        found = asyncio.run(both(podman_root))
    print("\n".join(map(str, found)) or f"Stopped for {seconds:g} s: no trace.")
    return 1 if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; 0 if all of it was done without a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=5, help="per cell")
    parser.add_argument("--database", choices=[*VICTIMS, "both"], default="both")
    parser.add_argument(
        "--victim", help="only this part: " + ", ".join(sorted({v for vs in VICTIMS.values() for v in vs}))
    )
    parser.add_argument("--boundary", choices=[each.value for each in Boundary], help="only this boundary")
    parser.add_argument("--lanes", type=int, default=2, help="turns at the same time, for each database")
    parser.add_argument("--minutes", type=float, default=60, help="no new cell is begun after this time")
    parser.add_argument(
        "--frozen", type=float, metavar="SECONDS", help="no kills: stop workers with SIGSTOP for so long"
    )
    parser.add_argument("--results", type=Path, help="keep what is done in this file, and go on from it")
    options = parser.parse_args(arguments)
    configure(level="ERROR", json=False, hide=str)
    logging.getLogger("milepost").setLevel(logging.CRITICAL)  # outages are what this is about
    if options.frozen:
        return freeze(options.frozen)
    run = Run(options)
    databases = {cell.database for cell in run.wanted}
    with running_service() as podman_root:
        asyncio.run(run_all(run, dict.fromkeys(sorted(databases), options.lanes), podman_root))
    text, good = report(run.wanted, run.lines, run.seed, run.kills)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
