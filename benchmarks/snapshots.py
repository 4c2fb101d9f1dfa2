"""What snapshots of a Workspace cost: `python -m benchmarks.snapshots [--files 10000]`.

First snapshot, one where nothing changed, one after ten files changed, a diff, and a restore, in milliseconds. Each but
the first is the median of several.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from milepost.snapshots import GitSnapshots

REPEATS = 9
FOLDERS = 100


def fill(folder: Path, files: int) -> None:
    """Small text files in 100 folders."""
    for number in range(files):
        path = folder / f"d{number % FOLDERS}" / f"f{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{number}\n" * 20)


async def measured(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds that it takes."""
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


async def measure(files: int, root: Path) -> dict[str, float]:
    """Milliseconds by step."""
    folder = root / "project"
    folder.mkdir()
    fill(folder, files)
    snapshots = GitSnapshots(root / "snapshots", seconds=600)

    async def take() -> str:
        return (await snapshots.take("wsp", folder)).tree

    found = {"first": await measured(take)}
    found["unchanged"] = statistics.median([await measured(take) for _ in range(REPEATS)])
    changed: list[float] = []
    diffs: list[float] = []
    restores: list[float] = []
    for repeat in range(REPEATS):
        before = await take()
        for number in range(10):
            (folder / f"d{number}" / f"f{number}.txt").write_text(f"changed {repeat}\n")
        changed.append(await measured(take))
        after = await take()
        diffs.append(await measured(lambda before=before, after=after: snapshots.diff("wsp", before, after)))
        restores.append(
            await measured(lambda before=before, after=after: snapshots.restore("wsp", folder, after, before))
        )
    found["ten changed"] = statistics.median(changed)
    found["diff"] = statistics.median(diffs)
    found["restore"] = statistics.median(restores)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(arguments.files, Path(folder)))
    for step, value in found.items():
        print(f"{step:12} {value:8.1f} ms")


if __name__ == "__main__":
    main()
