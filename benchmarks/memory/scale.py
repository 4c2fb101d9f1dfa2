"""What semantic memory costs as it grows: searching, adding, starting, memory.

Usage: python -m benchmarks.memory.scale [--records 1000 10000 100000] [--rounds 40] [--json]

Records are sentences of words with the frequencies of a natural text (Zipf), 5 to 30 words long. Their vectors are made
up (384 dimensions, 500 clusters), since embedding 100,000 texts takes minutes and costs the same each; queries are
embedded by the packaged MiniLM. `bare` is that embedding and a search for 10 in a faiss flat index of the same vectors,
in one thread. `start` is the first search of a new process' memory over a store that is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from milepost.domain.memory import Scope
from milepost.domain.semantic import FACT, MemoryEntry
from milepost.embedders.minilm.embedder import SPACE, PackagedMiniLM
from milepost.memory.semantic import IndexedMemory
from milepost.storage.semantic_files import FileSemanticStore

SCOPE = Scope.agent("bench", "agent")
VOCABULARY = 20_000
CLUSTERS = 500
BATCH = 1000


class MadeUp:
    """Vectors that cost nothing for records (they begin with a date), and real ones for queries."""

    neural = True
    space = SPACE

    def __init__(self) -> None:
        import numpy as np

        self._real = PackagedMiniLM(threads=1, seconds=120, load_seconds=120)
        self._random = np.random.default_rng(1)
        self._centers = self._random.normal(size=(CLUSTERS, SPACE.dimensions)).astype("f4")
        self.all: list[bytes] = []

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        if not texts[0].startswith("["):
            return await self._real.embed(texts)
        import numpy as np

        centers = self._centers[self._random.integers(0, CLUSTERS, len(texts))]
        found = centers + self._random.normal(scale=0.9, size=centers.shape).astype("f4") + 0.7
        found = (found / np.linalg.norm(found, axis=1, keepdims=True)).astype("<f4")
        vectors = [row.tobytes() for row in found]
        self.all += vectors
        return vectors


class Texts:
    def __init__(self) -> None:
        self._random = random.Random(1)
        self._words = [f"{self._random.choice('bdfgklmnprstvz')}{number:x}o" for number in range(VOCABULARY)]
        self._weights = [1 / (rank + 3) for rank in range(VOCABULARY)]

    def sentence(self, least: int = 5, most: int = 30) -> str:
        return " ".join(self._random.choices(self._words, self._weights, k=self._random.randint(least, most)))

    def query(self) -> str:
        """Eight words, of which some are rare."""
        return " ".join(
            [*self._random.choices(self._words, self._weights, k=5), *self._random.choices(self._words, k=3)]
        )


def entry(number: int, text: str, kind: str = "request") -> MemoryEntry:
    turn = number // 2
    return MemoryEntry(f"e{number}", text, kind, number * 30_000_000, f"turn_{turn}", turn, speaker="Ann")


async def timed(rounds: int, work: Callable[[int], Awaitable[Any]]) -> tuple[float, float]:
    """(p50, p95) in milliseconds."""
    found = []
    for number in range(rounds):
        start = time.perf_counter()
        await work(number)
        found.append(1000 * (time.perf_counter() - start))
    found.sort()
    return round(found[len(found) // 2], 2), round(found[int(0.95 * (len(found) - 1))], 2)


def resident() -> float:
    """Megabytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def measure(folder: Path, records: int, rounds: int) -> dict[str, Any]:
    embedder, texts = MadeUp(), Texts()
    writer = IndexedMemory(FileSemanticStore(lambda scope: folder / scope.component), embedder)
    start = time.perf_counter()
    for first in range(0, records, BATCH):
        count = min(BATCH, records - first)
        await writer.add(SCOPE, [entry(first + number, texts.sentence()) for number in range(count)])
    filling = time.perf_counter() - start
    size = (await writer.stats(SCOPE)).bytes
    await writer.close()
    memory = IndexedMemory(FileSemanticStore(lambda scope: folder / scope.component), embedder)
    queries = [texts.query() for _ in range(rounds)]
    await embedder.embed(["warm"])
    before = resident()
    starting, _ = await timed(1, lambda _: memory.search(SCOPE, "start", limit=10, min_score=0))
    held = resident() - before
    bare = await timed(rounds, _bare(embedder, queries))
    search = await timed(rounds, lambda number: memory.search(SCOPE, queries[number], limit=10, min_score=0))
    new = iter(range(10_000_000, 20_000_000))
    adding = await timed(rounds, lambda _: memory.add(SCOPE, [entry(next(new), texts.sentence())]))
    facts = await timed(rounds, lambda _: memory.add(SCOPE, [entry(next(new), f"[{texts.sentence()}", FACT)]))
    await memory.close()
    return {
        "records": records,
        "bare p50/p95 ms": bare,
        "search p50/p95 ms": search,
        "times bare, p95": round(search[1] / bare[1], 2),
        "add a turn p50/p95 ms": adding,
        "add a fact p50/p95 ms": facts,
        "start s": round(starting / 1000, 2),
        "memory MB": round(held),
        "file MB": round(size / 1e6, 1),
        "filled records/s": round(records / filling),
    }


def _bare(embedder: MadeUp, queries: Sequence[str]) -> Callable[[int], Awaitable[Any]]:
    import faiss
    import numpy as np

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(SPACE.dimensions)
    index.add(np.frombuffer(b"".join(embedder.all), dtype="<f4").reshape(-1, SPACE.dimensions))

    async def search(number: int) -> None:
        [vector] = await embedder.embed([queries[number]])
        index.search(np.frombuffer(vector, dtype="<f4").reshape(1, -1), 10)

    return search


async def main(sizes: Sequence[int], rounds: int, as_json: bool) -> None:
    for records in sizes:
        with tempfile.TemporaryDirectory() as name:
            found = await measure(Path(name), records, rounds)
        if as_json:
            print(json.dumps(found), flush=True)
        else:
            print("\n".join(f"{key:24} {value}" for key, value in found.items()), flush=True)
            print(f"{'load':24} {os.getloadavg()[0]:.1f}\n", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    asyncio.run(main(given.records, given.rounds, given.json))
