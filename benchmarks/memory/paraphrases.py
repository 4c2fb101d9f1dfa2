"""How many current facts are left of paraphrases, and of facts that only look alike.

Usage: python -m benchmarks.memory.paraphrases

100 ways to say one fact are added one after the other, as facts of one owner, with the packaged embedder; then pairs
that contradict each other, which must stay apart.
"""

from __future__ import annotations

import asyncio
import tempfile
from itertools import product
from pathlib import Path

from milepost.domain.memory import Scope
from milepost.domain.semantic import FACT, MemoryEntry, SemanticStats
from milepost.embedders.minilm.embedder import PackagedMiniLM
from milepost.memory.semantic import IndexedMemory
from milepost.ports.embeddings import Embedder
from milepost.storage.semantic_files import FileSemanticStore

_WHAT = ("The test suite", "Running all of the tests", "A full run of the tests", "The whole suite of tests")
_TAKES = ("takes", "needs", "lasts", "is done in", "will usually take")
_TIME = ("about ten minutes", "ten minutes or so", "roughly ten minutes", "some ten minutes in all", "ten minutes")
PARAPHRASES = [f"{what} {takes} {time}." for what, takes, time in product(_WHAT, _TAKES, _TIME)]

CONTRASTS = [
    ("The user likes dark mode.", "The user hates dark mode."),
    ("The server runs in the staging cluster.", "The server runs in the production cluster."),
    ("Alice reports to Bob.", "Bob reports to Alice."),
    ("The user is allergic to peanuts.", "The user loves peanuts."),
    ("The build passes on Linux.", "The build fails on Linux."),
    ("The user's son plays the piano.", "The user's daughter plays the piano."),
    ("We deploy from the main branch.", "We deploy from the release branch."),
    ("The user lives in Berlin.", "The user lives in Munich."),
    ("The cache is enabled by default.", "The cache is disabled by default."),
    ("The user bought a red car.", "The user sold a red car."),
    ("Backups run before the migration.", "Backups run after the migration."),
    ("The old parser is slower than the new one.", "The new parser is slower than the old one."),
    ("The client sends data to the server.", "The server sends data to the client."),
    ("The user prefers email over phone calls.", "The user prefers phone calls over email."),
    ("The user wants short answers.", "The user wants long, detailed answers."),
    ("The user adopted a puppy.", "The user adopted a kitten from the shelter."),
    ("The port is 8080.", "The port is 8081."),
    ("The user eats meat.", "The user does not eat meat."),
    ("Releases are on Friday.", "Releases are on Monday."),
    ("The frontend team owns the login page.", "The backend team owns the login page."),
]


async def left(texts: list[str], embedder: Embedder, folder: Path) -> SemanticStats:
    """What a memory has after these facts were added one by one."""
    memory = IndexedMemory(FileSemanticStore(lambda scope: folder / scope.component), embedder)
    scope = Scope.agent("bench", "agent")
    for number, text in enumerate(texts):
        await memory.add(scope, [MemoryEntry(f"e{number}", text, FACT, number * 60_000_000)])
    stats = await memory.stats(scope)
    await memory.close()
    return stats


async def main() -> None:
    embedder = PackagedMiniLM(threads=1, seconds=120, load_seconds=120)
    with tempfile.TemporaryDirectory() as name:
        one = await left(PARAPHRASES, embedder, Path(name) / "one")
        again = await left(PARAPHRASES[:1] * 100, embedder, Path(name) / "again")
        contrasts = await left([text for pair in CONTRASTS for text in pair], embedder, Path(name) / "two")
    await embedder.close()
    print(f"{one.entries} paraphrases: {one.current} current, said again {one.duplicate_rate / 10_000:.0f} %")
    print(f"one text 100 times: {again.current} current, {again.records} kept")
    print(f"{contrasts.entries} facts in {len(CONTRASTS)} contrasts: {contrasts.near_duplicates} taken for the same")


if __name__ == "__main__":
    asyncio.run(main())
