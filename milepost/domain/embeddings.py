"""Vectors of texts, and which of them may be compared."""

from __future__ import annotations

from dataclasses import dataclass

MIN_DIMENSIONS = 8
MAX_DIMENSIONS = 4096
VECTOR_ITEM_BYTES = 4
"""A component is an IEEE 754 single, little-endian."""


@dataclass(frozen=True, slots=True)
class EmbeddingSpace:
    """What made a vector. Vectors of two spaces mean different things by the same numbers and are never compared.

    Attributes:
        embedder: the model in the form that was run, for example `minilm-l6-v2/int8`.
        dimensions: components of a vector, 8 to 4096.
    """

    embedder: str
    dimensions: int

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector."""
        return VECTOR_ITEM_BYTES * self.dimensions

    def __str__(self) -> str:
        return f"{self.embedder} ({self.dimensions} dimensions)"
