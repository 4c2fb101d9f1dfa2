"""Long-term memory for tests: a clock that is set, embedders whose vectors are known, and a slow search to compare."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import EmbedderUnknown, EmbeddingFailed
from milepost.domain.longterm import ContentType, Entry, LongTermConfig, Provenance
from milepost.ports.embeddings import Embedder
from milepost.ports.ledger import Ledger
from milepost.ports.longterm import LongTermStore
from milepost.services.longterm.indexes import Indexes
from milepost.services.longterm.ledger_store import LedgerLongTerm
from milepost.services.longterm.service import Kept, LongTermMemory, Put

DAY = 86_400_000_000
START = 1_800_000_000_000_000


class SetClock:
    def __init__(self) -> None:
        self.at = START

    def now(self) -> int:
        return self.at


def packed(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@dataclass
class Known:
    """An embedder with a table of vectors; a text that is not in it has a vector of its letters."""

    name: str = "known"
    dimensions: int = 8
    table: dict[str, Sequence[float]] = field(default_factory=dict)
    neural: bool = True
    failing: bool = False
    calls: int = 0

    @property
    def space(self) -> EmbeddingSpace:
        return EmbeddingSpace(self.name, self.dimensions)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        self.calls += 1
        if self.failing:
            raise EmbeddingFailed("The embedder is away.", fix="Wait.")
        return [packed(self.vector(text)) for text in texts]

    def vector(self, text: str) -> list[float]:
        if text in self.table:
            given = list(self.table[text])
            return given + [0.0] * (self.dimensions - len(given))
        counts = [0.0] * self.dimensions
        for letter in text:
            counts[ord(letter) * 7 % self.dimensions] += 1 if ord(letter) % 3 else -1
        length = math.hypot(*counts)
        return [count / length if length else 0.0 for count in counts]


class KnownEmbedders:
    """`Embedders` of some `Known`; the first is the default."""

    def __init__(self, *embedders: Known) -> None:
        self.all = list(embedders)

    @property
    def default(self) -> Embedder:
        return self.all[0]

    def named(self, name: str) -> Embedder:
        for embedder in self.all:
            if embedder.name == name:
                return embedder
        raise EmbedderUnknown(f"There is no embedder '{name}'.")

    def for_space(self, space: EmbeddingSpace) -> Embedder | None:
        return next((embedder for embedder in self.all if embedder.space == space), None)


@dataclass
class Bench:
    memory: LongTermMemory
    clock: SetClock
    embedders: KnownEmbedders
    store: LongTermStore

    async def put(self, key: str, text: str | None = None, **more: Any) -> Kept:
        value, metadata = more.pop("value", None), more.pop("metadata", {})
        kind = ContentType.TEXT if value is None else ContentType.JSON
        put = Put(key, Entry(kind, text, value, metadata), Provenance("test"), **more)
        return await self.memory.put("n", put)


def bench(
    ledger: Ledger, *embedders: Known, config: LongTermConfig | None = None, exact_candidates: int = 100_000
) -> Bench:
    clock, known = SetClock(), KnownEmbedders(*(embedders or (Known(),)))
    store = LedgerLongTerm(ledger)

    async def open_store(_name: str) -> LongTermStore:
        return store

    memory = LongTermMemory(open_store, known, clock, config or LongTermConfig(), Indexes(exact_candidates))
    return Bench(memory, clock, known, store)


# --- a search that scores every record as the documentation says ------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """A record of the slow search: `words` need no stemming."""

    key: str
    words: tuple[str, ...]
    vector: Sequence[float] | None
    metadata: Mapping[str, Any]


def single(values: Sequence[float]) -> list[float]:
    return list(struct.unpack(f"<{len(values)}f", packed(values)))


def slow_search(
    records: Sequence[Plain], query: Sequence[str], vector: Sequence[float], mode: str, filters: Mapping[str, Any]
) -> list[tuple[str, int]]:
    """All records above 0 with their scores, best first, equal ones by key."""
    wanted = sorted(set(query))
    average = sum(len(record.words) for record in records) / len(records)
    containing = {word: sum(word in record.words for record in records) for word in wanted}

    def rank(record: Plain) -> float:
        total = 0.0
        for word in wanted:
            count = record.words.count(word)
            if count:
                rarity = math.log(1 + (len(records) - containing[word] + 0.5) / (containing[word] + 0.5))
                total += rarity * count * 1.9 / (count + 0.9 * (0.6 + 0.4 * len(record.words) / average))
        return total / (total + 10)

    def near(record: Plain) -> float:
        if record.vector is None:
            return 0.0
        one, other = single(vector), single(record.vector)
        dot = math.fsum(a * b for a, b in zip(one, other, strict=True))
        size = math.sqrt(math.fsum(a * a for a in one)) * math.sqrt(math.fsum(b * b for b in other))
        return max(0.0, dot / size) if size else 0.0

    def score(record: Plain) -> int:
        text = sum(word in record.words for word in wanted) * 1_000_000 // len(wanted)
        cosine = round(near(record) * 1_000_000)
        return {
            "text": lambda: text,
            "vector": lambda: cosine,
            "hybrid": lambda: (text + cosine) // 2,
            "bm25": lambda: round(1_000_000 * rank(record)),
            "best": lambda: round(1_000_000 * (0.6 * rank(record) + 0.4 * near(record))),
        }[mode]()

    fitting = [record for record in records if all(record.metadata.get(name) == filters[name] for name in filters)]
    scored = [(record.key, score(record)) for record in fitting]
    return sorted(((key, value) for key, value in scored if value > 0), key=lambda item: (-item[1], item[0]))
