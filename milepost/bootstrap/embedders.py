"""The embedders of this instance, made at their first use."""

from __future__ import annotations

from typing import Protocol

from milepost.config.loading import Config
from milepost.domain.embeddings import (
    BUILTIN_EMBEDDERS,
    LEXICAL,
    PACKAGED,
    EmbeddingSpace,
    LexicalEmbedder,
    LocalEmbedder,
    RemoteEmbedder,
)
from milepost.domain.errors import EmbedderUnknown, EmbeddingFailed
from milepost.domain.providers import HttpProvider
from milepost.embedders.lexical import LexicalHash
from milepost.embedders.minilm.embedder import INSTALL, PackagedMiniLM
from milepost.embedders.minilm.embedder import SPACE as MINILM_SPACE
from milepost.embedders.minilm.embedder import installed as packaged_installed
from milepost.embedders.sentence_transformers import INSTALL as LOCAL_INSTALL
from milepost.embedders.sentence_transformers import SentenceTransformerEmbedder
from milepost.embedders.sentence_transformers import installed as local_installed
from milepost.ports.embeddings import Embedder
from milepost.services.health import Check

_LEXICAL_NAME = LexicalHash().space.embedder


class _Closable(Embedder, Protocol):
    async def close(self) -> None: ...


class InstanceEmbedders:
    """`ports.embeddings.Embedders` of a configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._section = config.embeddings
        self._open: dict[str, _Closable] = {}
        self.default_name = self._section.default or (PACKAGED if packaged_installed() else LEXICAL)

    @property
    def default(self) -> Embedder:
        """The one that is used where none is named."""
        return self.named(self.default_name)

    def named(self, name: str) -> Embedder:
        """See `ports.embeddings.Embedders`."""
        if name == "default":
            return self.default
        if name not in self._open:
            self._open[name] = self._made(name)
        return self._open[name]

    def for_space(self, space: EmbeddingSpace) -> Embedder | None:
        """See `ports.embeddings.Embedders`. Of two that make the same vectors, the default one."""
        if space.embedder == _LEXICAL_NAME:
            return self._lexical(space.dimensions)
        names = [self.default_name, *self._section.embedders]
        if space == MINILM_SPACE and packaged_installed():
            names.append(PACKAGED)
        for name in names:
            try:
                embedder = self.named(name)
                if embedder.space == space:
                    return embedder
            except EmbeddingFailed:  # the folder of its model cannot be read
                continue
        return None

    def _lexical(self, dimensions: int) -> Embedder:
        name = f"{LEXICAL}/{dimensions}"
        return self._open.setdefault(name, LexicalHash(dimensions))

    def _made(self, name: str) -> _Closable:
        section = self._section
        limits = {"seconds": section.seconds, "load_seconds": section.load_seconds}
        if name == LEXICAL:
            return LexicalHash()
        if name == PACKAGED:
            return PackagedMiniLM(threads=section.threads, **limits)
        match section.embedders.get(name):
            case LexicalEmbedder(dimensions):
                return LexicalHash(dimensions)
            case LocalEmbedder() as local:
                return SentenceTransformerEmbedder(local, threads=section.threads, **limits)
            case RemoteEmbedder() as remote:
                return self._remote(remote)
            case None:
                known = ", ".join([*BUILTIN_EMBEDDERS, *section.embedders])
                raise EmbedderUnknown(f"There is no embedder '{name}'.", field="embedder", fix=f"Configured: {known}.")

    def _remote(self, remote: RemoteEmbedder) -> _Closable:
        from milepost.providers.embeddings import ProviderEmbedder

        provider = self._config.providers[remote.provider]
        if not isinstance(provider, HttpProvider):
            raise EmbedderUnknown(f"Provider '{remote.provider}' has no embeddings.", field="provider")
        return ProviderEmbedder(remote, provider, self._config.secrets, self._section.seconds)

    async def close(self) -> None:
        """Forget the models and close the connections."""
        opened, self._open = list(self._open.values()), {}
        for embedder in opened:
            await embedder.close()


async def embeddings_check(config: Config) -> Check:
    """Which embedder is in use, whether it works, and how to have a better one."""
    embedders = InstanceEmbedders(config)
    name = embedders.default_name
    local = config.embeddings.embedders.get(name)
    try:
        if isinstance(local, LocalEmbedder):
            # Trying it would take its time, or fetch the model.
            if not local_installed():
                return Check("embeddings", False, f"'{name}' needs sentence-transformers.", LOCAL_INSTALL)
            return Check("embeddings", True, f"'{name}' is used: {embedders.default.space}, loaded at the first use.")
        await embedders.default.embed(["Does it work?"])
    except EmbeddingFailed as error:
        return Check("embeddings", False, f"'{name}' cannot be used: {error.message}", error.fix)
    finally:
        await embedders.close()
    detail = f"'{name}' is used: {embedders.default.space}."
    if not embedders.default.neural and config.embeddings.default is None:
        detail += f" It knows words, not meaning. For meaning: {INSTALL[0].lower()}{INSTALL[1:]}."
    return Check("embeddings", True, detail)
