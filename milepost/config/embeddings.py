"""The `embeddings` section: what makes vectors of texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from milepost.config.document import Fault, Path_
from milepost.config.problems import nearest
from milepost.config.providers import AnthropicSection, HttpSection, ProviderSection
from milepost.config.sections import Count, Name, Seconds, Section
from milepost.domain.embeddings import (
    BUILTIN_EMBEDDERS,
    DEFAULT_EMBED_SECONDS,
    DEFAULT_LEXICAL_DIMENSIONS,
    DEFAULT_LOAD_SECONDS,
    MAX_DIMENSIONS,
    MIN_DIMENSIONS,
    EmbedderConfig,
    EmbeddingsConfig,
    LexicalEmbedder,
    LocalEmbedder,
    RemoteEmbedder,
)

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Dimensions = Annotated[Count, Field(ge=MIN_DIMENSIONS, le=MAX_DIMENSIONS)]

SIZES: Final[dict[str, tuple[int, int | None]]] = {
    "text-embedding-3-small": (1536, 1536),
    "text-embedding-3-large": (3072, 3072),
    "text-embedding-ada-002": (1536, None),
    "mistral-embed": (1024, None),
    "codestral-embed": (1536, 3072),
    "gemini-embedding-001": (3072, 3072),
    "nomic-embed-text": (768, None),
    "mxbai-embed-large": (1024, None),
}
"""Dimensions of well-known models, and the most that can be asked for; None if no other size can."""


class LexicalSection(Section):
    """Vectors of words, without a model."""

    type: Literal["lexical"]
    dimensions: Dimensions = DEFAULT_LEXICAL_DIMENSIONS


class LocalSection(Section):
    """A model for the library sentence-transformers."""

    type: Literal["sentence_transformers"]
    model: ModelName = "sentence-transformers/all-MiniLM-L6-v2"
    """A folder, or a name on the model hub."""
    dimensions: Dimensions = 384
    download: bool = True
    """Whether the model may be fetched at the first use, if it is not on this machine."""


class RemoteSection(Section):
    """A model of a configured provider, with its address, credential and headers."""

    type: Literal["provider"]
    provider: str
    model: ModelName
    dimensions: Dimensions | None = None
    """Size of the vectors. Needed for a model that is not well known; another size than the model's own can be asked
    of models that support it."""
    request_dimensions: bool | None = None
    """Whether the size goes out with the request. Default: if it is not the model's own."""


EmbedderSection = Annotated[LexicalSection | LocalSection | RemoteSection, Field(discriminator="type")]


class EmbeddingsSection(Section):
    default: str | None = None
    """What embeds where nothing else is named: `minilm`, `lexical`, or a name below. Default: the packaged `minilm` if
    its extra is installed, else `lexical`."""
    threads: Annotated[Count, Field(ge=1, le=256)] = 1
    """Processors that a local model uses."""
    seconds: Seconds = DEFAULT_EMBED_SECONDS
    """How long one call may take."""
    load_seconds: Seconds = DEFAULT_LOAD_SECONDS
    """How long loading a model may take, with its download."""
    embedders: Annotated[dict[Name, EmbedderSection], Field(max_length=32)] = Field(default_factory=dict)
    """Embedders by name, beside `minilm` and `lexical`."""


def check(section: EmbeddingsSection, providers: dict[str, ProviderSection]) -> Iterator[Fault]:
    """What the section cannot see alone."""
    known = [*BUILTIN_EMBEDDERS, *section.embedders]
    if section.default is not None and section.default not in known:
        message = f"names an embedder '{section.default}' that is not configured."
        yield ("embeddings", "default"), message, nearest(section.default, known)
    for name, embedder in section.embedders.items():
        path = ("embeddings", "embedders", name)
        if name in BUILTIN_EMBEDDERS:
            yield path, "has the name of a built-in embedder.", "Give it another name."
        if isinstance(embedder, RemoteSection):
            yield from _check_provider(path, embedder, providers)
            yield from _check_size(path, embedder)


def _check_provider(path: Path_, remote: RemoteSection, providers: dict[str, ProviderSection]) -> Iterator[Fault]:
    provider = providers.get(remote.provider)
    able = [name for name, other in providers.items() if _embeds(other)]
    if provider is None:
        message = f"names a provider '{remote.provider}' that is not configured."
        yield (*path, "provider"), message, nearest(remote.provider, able)
    elif not _embeds(provider):
        message = f"names the provider '{remote.provider}', which has no embeddings."
        yield (*path, "provider"), message, nearest(remote.provider, able)


def _embeds(provider: ProviderSection) -> bool:
    return isinstance(provider, HttpSection) and not isinstance(provider, AnthropicSection)


def _check_size(path: Path_, remote: RemoteSection) -> Iterator[Fault]:
    own, most = _sizes(remote.model)
    if own is None:
        if remote.dimensions is None:
            yield path, f"has no dimensions, and the size of '{remote.model}' is not known.", "Set its dimensions."
        return
    wanted = remote.dimensions or own
    if wanted != own and most is None:
        message = f"is {wanted}, but '{remote.model}' has {own} dimensions and supports no other size."
        yield (*path, "dimensions"), message, f"Set it to {own}, or leave it out."
    elif wanted > (most or own):
        message = f"is {wanted}, but '{remote.model}' has at most {most} dimensions."
        yield (*path, "dimensions"), message, f"Set it to at most {most}."
    if remote.request_dimensions and most is None:
        message = f"is true, but '{remote.model}' takes no size."
        yield (*path, "request_dimensions"), message, "Leave it out."


def _sizes(model: str) -> tuple[int | None, int | None]:
    return SIZES.get(model.rpartition("/")[2].partition(":")[0], (None, None))


def embeddings(section: EmbeddingsSection) -> EmbeddingsConfig:
    """The section as values of the domain."""
    return EmbeddingsConfig(
        default=section.default,
        threads=section.threads,
        seconds=section.seconds,
        load_seconds=section.load_seconds,
        embedders={name: _embedder(embedder) for name, embedder in section.embedders.items()},
    )


def _embedder(section: EmbedderSection) -> EmbedderConfig:
    match section:
        case LexicalSection():
            return LexicalEmbedder(section.dimensions)
        case LocalSection():
            return LocalEmbedder(section.model, section.dimensions, section.download)
        case RemoteSection():
            own, _ = _sizes(section.model)
            size = section.dimensions or own or MIN_DIMENSIONS
            asked = section.request_dimensions
            if asked is None:
                asked = own is not None and size != own
            return RemoteEmbedder(section.provider, section.model, size, asked)
