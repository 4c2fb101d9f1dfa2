"""The lexical hash: vectors of words, without a model.

Each token of a text (`engine.lexical`) is put at a place that its hash says, with a sign that its hash says, and counts
as often as it occurs; the sum has length 1 (feature hashing, Weinberger et al. 2009). Texts are near each other when
they share words, so it knows no meaning. It needs nothing and gives the same bytes everywhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache
from math import sqrt

from milepost.domain.embeddings import DEFAULT_LEXICAL_DIMENSIONS, EmbeddingSpace
from milepost.engine.lexical import TOKENS_VERSION, tokens

INLINE_CHARACTERS = 2000
"""A text that is embedded at once; a thread would take longer to be told of it."""


class LexicalHash:
    """Embedder of the space `lexical-hash/1` with 8 to 4096 dimensions."""

    neural = False

    def __init__(self, dimensions: int = DEFAULT_LEXICAL_DIMENSIONS) -> None:
        self.space = EmbeddingSpace(f"lexical-hash/{TOKENS_VERSION}", dimensions)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors of texts; that of a text without words is zero."""
        size = self.space.dimensions
        if len(texts) == 1 and len(texts[0]) <= INLINE_CHARACTERS:
            return [hash_vector(texts[0], size)]
        return await asyncio.to_thread(lambda: [hash_vector(text, size) for text in texts])

    async def close(self) -> None:
        """Nothing is open."""


def hash_vector(text: str, dimensions: int) -> bytes:
    """The lexical hash of a text: `dimensions` little-endian singles of length 1, or all 0 for a text without words.

    A token's hash is the first 8 bytes of the BLAKE2b-64 of its UTF-8, little-endian: its lowest bit is the sign (1 is
    minus), the rest modulo `dimensions` the place.
    """
    sums = [0] * dimensions
    for token in tokens(text):
        number = _hash(token)
        sums[(number >> 1) % dimensions] += -1 if number & 1 else 1
    length = sqrt(sum(value * value for value in sums))
    return struct.pack(f"<{dimensions}f", *(value / length if length else 0.0 for value in sums))


@lru_cache(maxsize=65_536)
def _hash(token: str) -> int:
    # Lone surrogates have no UTF-8; a text may hold them all the same.
    return int.from_bytes(hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
