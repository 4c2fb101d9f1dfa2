"""Long-term memory against the number of records: filling, one more record, the first search, searches, memory.

Usage: python -m benchmarks.memory.longterm [--sizes N,N] [--dimensions N] [--queries N] [--embed] [--folder DIR]

Runs on SQLite in `--folder`, which should be on the disk to measure. Texts are 6 to 20 words of a vocabulary whose
frequencies fall as in a language (Zipf). Vectors are drawn around 200 centers by the digest of their text, so embedding
costs nothing here; what a real embedder takes for a query (`--embed`) is measured apart. `cpu` is the mean processor
time of the whole process, which others on the machine disturb less than the clock. Each size runs in a process of its
own, so that the memory is its own.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from milepost.bootstrap.system import SystemClock
from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.longterm import ContentType, Entry, LongTermConfig, Provenance, SearchMode
from milepost.ports.longterm import LongTermStore
from milepost.services.longterm.ledger_store import LedgerLongTerm
from milepost.services.longterm.service import LongTermMemory, Put, SearchRequest
from milepost.storage import Hub, open_ledger, upgrade

MAX_RECORDS = 1_000_000
LIMIT_SECONDS = 7_200
BATCH = 500
CENTERS = 200
VOCABULARY = 20_000
APPENDS = 60


class Drawn:
    """Vectors that are drawn by the digest of their text."""

    neural = True

    def __init__(self, dimensions: int) -> None:
        import numpy as np

        self.space = EmbeddingSpace("drawn", dimensions)
        self._np = np
        self._centers = np.random.default_rng(1).normal(size=(CENTERS, dimensions)).astype(np.float32)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        found = []
        for text in texts:
            seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
            dice = self._np.random.default_rng(seed)
            drawn = dice.normal(size=self.space.dimensions).astype(self._np.float32)
            vector = self._centers[seed % CENTERS] + 0.8 * drawn
            found.append((vector / self._np.linalg.norm(vector)).astype("<f4").tobytes())
        return found


class DrawnAlone:
    def __init__(self, embedder: Drawn) -> None:
        self.default = embedder

    def named(self, name: str) -> Drawn:
        return self.default

    def for_space(self, space: EmbeddingSpace) -> Drawn:
        return self.default


class Words:
    """Texts of words whose frequencies fall as one over their rank."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._words = [f"w{number}x" for number in range(VOCABULARY)]
        self._weights = []
        total = 0.0
        for rank in range(1, VOCABULARY + 1):
            total += 1 / rank
            self._weights.append(total)

    def text(self, least: int, most: int) -> str:
        count = self._dice.randint(least, most)
        return " ".join(self._dice.choices(self._words, cum_weights=self._weights, k=count))


def resident() -> float:
    """Megabytes of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def megabytes(folder: Path) -> int:
    """Of a database's files."""
    return round(sum(path.stat().st_size for path in folder.glob("memory-*")) / 1e6)


def milliseconds(values: list[float], share: float) -> float:
    return round(1000 * sorted(values)[min(len(values) - 1, int(share * len(values)))], 2)


async def measure(size: int, dimensions: int, queries: int, folder: Path) -> dict[str, Any]:
    """One size, in a fresh database."""
    url = f"sqlite:///{folder / f'memory-{size}.db'}"
    await upgrade(url)
    ledger = await open_ledger(url, Hub())
    store = LedgerLongTerm(ledger)

    async def open_store(_name: str) -> LongTermStore:
        return store

    def fresh() -> LongTermMemory:
        return LongTermMemory(open_store, DrawnAlone(embedder), SystemClock(), LongTermConfig())

    embedder, words = Drawn(dimensions), Words(size)
    memory, found = fresh(), {"records": size, "dimensions": dimensions}
    begun = time.perf_counter()
    for first in range(0, size - APPENDS, BATCH):
        last = min(first + BATCH, size - APPENDS)
        await memory.put_many("bench", [_put(number, words) for number in range(first, last)])
        assert time.perf_counter() - begun < LIMIT_SECONDS
    found["fill_seconds"] = round(time.perf_counter() - begun, 1)
    appends, spent = [], time.process_time()
    for number in range(size - APPENDS, size):
        start = time.perf_counter()
        await memory.put("bench", _put(number, words))
        appends.append(time.perf_counter() - start)
    found["append_cpu_ms"] = round(1000 * (time.process_time() - spent) / APPENDS, 2)
    found["append_p50_ms"], found["append_p95_ms"] = milliseconds(appends, 0.5), milliseconds(appends, 0.95)
    found["file_mb"] = megabytes(folder)
    memory, before, start = fresh(), resident(), time.perf_counter()
    await memory.search("bench", SearchRequest(words.text(3, 6)))
    found["first_search_seconds"] = round(time.perf_counter() - start, 2)
    found["memory_mb"] = round(resident() - before)
    for mode in SearchMode:
        times, spent = [], time.process_time()
        for _ in range(queries):
            request = SearchRequest(words.text(2, 6), mode)
            start = time.perf_counter()
            result = await memory.search("bench", request)
            times.append(time.perf_counter() - start)
        found[f"{mode.value}_cpu_ms"] = round(1000 * (time.process_time() - spent) / queries, 2)
        found[f"{mode.value}_p50_ms"], found[f"{mode.value}_p95_ms"] = (
            milliseconds(times, 0.5),
            milliseconds(times, 0.95),
        )
        found[f"{mode.value}_exact"] = result.exact
    filtered = []
    for number in range(queries):
        request = SearchRequest(words.text(2, 6), SearchMode.HYBRID, 10, {"group": number % 100})
        start = time.perf_counter()
        await memory.search("bench", request)
        filtered.append(time.perf_counter() - start)
    found["filtered_p50_ms"], found["filtered_p95_ms"] = milliseconds(filtered, 0.5), milliseconds(filtered, 0.95)
    if size <= 100_000:
        names = ("bare_faiss_cpu_ms", "bare_faiss_p50_ms", "bare_faiss_p95_ms")
        found |= dict(zip(names, await _bare(embedder, size, queries), strict=True))
    await ledger.close()
    return found


def _put(number: int, words: Words) -> Put:
    entry = Entry(ContentType.TEXT, words.text(6, 20), metadata={"group": number % 100})
    return Put(f"record-{number:07}", entry, Provenance("bench"))


async def _bare(embedder: Drawn, size: int, queries: int) -> tuple[float, float, float]:
    """Nothing but a flat faiss index of as many vectors, one thread."""
    import faiss
    import numpy as np

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatIP(embedder.space.dimensions)
    for first in range(0, size, 10_000):
        vectors = await embedder.embed([f"bare {number}" for number in range(first, min(first + 10_000, size))])
        index.add(np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1))
    times, spent = [], 0.0
    for number in range(queries):
        (vector,) = await embedder.embed([f"query {number}"])
        query = np.frombuffer(vector, dtype="<f4")[None]
        start, cpu = time.perf_counter(), time.process_time()
        index.search(query, 10)
        times.append(time.perf_counter() - start)
        spent += time.process_time() - cpu
    return round(1000 * spent / queries, 2), milliseconds(times, 0.5), milliseconds(times, 0.95)


async def embedding(queries: int) -> dict[str, Any]:
    """What the packaged model takes for one query."""
    from milepost.embedders.minilm.embedder import PackagedMiniLM

    embedder, words, times = PackagedMiniLM(threads=1, seconds=60, load_seconds=60), Words(1), []
    await embedder.embed(["warm"])
    for _ in range(queries):
        text = words.text(4, 12)
        start = time.perf_counter()
        await embedder.embed([text])
        times.append(time.perf_counter() - start)
    await embedder.close()
    return {"minilm_query_p50_ms": milliseconds(times, 0.5), "minilm_query_p95_ms": milliseconds(times, 0.95)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--embed", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = [min(int(size), MAX_RECORDS) for size in given.sizes.split(",")]
    if given.here:
        print(json.dumps(asyncio.run(measure(sizes[0], given.dimensions, given.queries, given.folder))))
        return
    results = [asyncio.run(embedding(given.queries))] if given.embed else []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            command = [sys.executable, "-m", "benchmarks.memory.longterm", "--here", "--sizes", str(size)]
            command += ["--dimensions", str(given.dimensions), "--queries", str(given.queries), "--folder", folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=2 * LIMIT_SECONDS)
        results.append(json.loads(done.stdout))
        if not given.json:
            print(json.dumps(results[-1], indent=1), flush=True)
    if given.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
