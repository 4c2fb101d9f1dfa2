"""Semantic memory for tests: embedders whose vectors a test can tell, and memory on each store there is."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import EmbeddingFailed
from milepost.domain.memory import Scope
from milepost.domain.semantic import FACT, MemoryEntry
from milepost.embedders.lexical import hash_vector
from milepost.memory.semantic import IndexedMemory
from milepost.memory.semantic_ledger import LedgerSemanticStore
from milepost.ports.ledger import Ledger
from milepost.ports.semantic_records import SemanticStore
from milepost.storage.semantic_files import FileSemanticStore

DAY = 86_400_000_000
MINUTE = 60_000_000
ANN = Scope.agent("ses_1", "ann")
BOB = Scope.agent("ses_1", "bob")


class Embedding:
    """Vectors of words, or those that `vectors` gives for a text; taken for neural. `down`: it fails."""

    neural = True

    def __init__(self, name: str = "test", dimensions: int = 32) -> None:
        self.space = EmbeddingSpace(name, dimensions)
        self.vectors: dict[str, tuple[float, ...]] = {}
        self.down = False
        self.refused = ""
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        if self.down or (self.refused and any(self.refused in text for text in texts)):
            raise EmbeddingFailed("The embedder is down.", fix="Start it.")
        self.texts += texts
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> bytes:
        if text in self.vectors:
            values = self.vectors[text]
            return struct.pack(f"<{self.space.dimensions}f", *values, *[0.0] * (self.space.dimensions - len(values)))
        return hash_vector(text, self.space.dimensions)


def semantic_store(place: str, ledger: Ledger) -> SemanticStore:
    """The store at a folder, or in the ledger's database."""
    return LedgerSemanticStore(ledger) if "://" in place else file_store(Path(place))


def file_store(root: Path, **options: int) -> FileSemanticStore:
    return FileSemanticStore(lambda scope: root / "memory" / "semantic" / "v1" / scope.component, **options)


def said(
    number: int, text: str, *, kind: str = "request", day: int = 0, speaker: str = "", **more: object
) -> MemoryEntry:
    """What was said in turn `number`, a minute after the one before."""
    more.setdefault("at", day * DAY + number * MINUTE)
    values = {"id": f"e{number}", "turn_id": f"t{number}", "turn_number": number, **more}
    return MemoryEntry(text=text, kind=kind, speaker=speaker, **values)  # type: ignore[arg-type]


def fact(number: int, text: str, **more: object) -> MemoryEntry:
    return said(number, text, kind=FACT, **more)  # type: ignore[arg-type]


async def found(memory: IndexedMemory, scope: Scope, query: str, **options: object) -> list[str]:
    """Ids of what a search finds."""
    recall = await memory.search(scope, query, **{"limit": 10, "min_score": 0, **options})  # type: ignore[arg-type]
    return [item.id for item in recall.items]
