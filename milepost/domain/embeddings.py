"""Vectors of texts, and which of them may be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


DEFAULT_LEXICAL_DIMENSIONS = 64
LEXICAL = "lexical"
PACKAGED = "minilm"
BUILTIN_EMBEDDERS = (PACKAGED, LEXICAL)
"""Embedders that are there without configuration; the packaged one only if its extra is installed."""

DEFAULT_EMBED_SECONDS = 120.0
DEFAULT_LOAD_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class LexicalEmbedder:
    """The lexical hash."""

    dimensions: int = DEFAULT_LEXICAL_DIMENSIONS


@dataclass(frozen=True, slots=True)
class LocalEmbedder:
    """A model for the library sentence-transformers: a folder, or a name that is looked up on the model hub.

    `download`: whether it may be fetched if it is not on this machine.
    """

    model: str
    dimensions: int
    download: bool = True


@dataclass(frozen=True, slots=True)
class RemoteEmbedder:
    """A model of a configured provider.

    `request_dimensions`: whether the size goes out with the request, since the model has a larger one by nature.
    """

    provider: str
    model: str
    dimensions: int
    request_dimensions: bool = False


EmbedderConfig = LexicalEmbedder | LocalEmbedder | RemoteEmbedder


@dataclass(frozen=True, slots=True)
class EmbeddingsConfig:
    """The embedders of an instance. `default` is None where the best that is installed is wanted.

    `threads` bounds the processors that one local model uses, `seconds` one call, `load_seconds` loading a model with
    its download.
    """

    default: str | None = None
    threads: int = 1
    seconds: float = DEFAULT_EMBED_SECONDS
    load_seconds: float = DEFAULT_LOAD_SECONDS
    embedders: Mapping[str, EmbedderConfig] = field(default_factory=dict)
