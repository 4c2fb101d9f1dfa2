"""Embedders: texts to vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from milepost.domain.embeddings import EmbeddingSpace


class Embedder(Protocol):
    """Makes vectors of texts, away from the event loop and within a deadline.

    Attributes:
        space: identity of what it makes; vectors of another space may not be compared with its own.
        neural: whether near vectors mean near meaning. False for the lexical hash, whose vectors know words only.
    """

    @property
    def space(self) -> EmbeddingSpace: ...

    @property
    def neural(self) -> bool: ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """One vector for each text, in order: `space.vector_bytes` bytes, little-endian singles of length 1.

        A text without anything to embed (empty, or only signs) may have the zero vector. What is over the model's
        window is cut.

        Raises:
            EmbeddingFailed: no vectors were made; its `fix` says what to do.
        """
        ...


class Embedders(Protocol):
    """The embedders of this instance, by name. None is loaded before its first use."""

    @property
    def default(self) -> Embedder:
        """The one that is used where none is named."""
        ...

    def named(self, name: str) -> Embedder:
        """The embedder `default`, or one of the section `embeddings` of the configuration.

        Raises:
            EmbedderUnknown: there is none of this name; the fix names those that there are.
        """
        ...

    def for_space(self, space: EmbeddingSpace) -> Embedder | None:
        """An embedder that makes vectors of this space, or None if the instance has none."""
        ...
