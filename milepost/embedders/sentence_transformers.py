"""Models for the library sentence-transformers: any that the user chooses, at the price of torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog

from milepost.domain.embeddings import EmbeddingSpace, LocalEmbedder
from milepost.domain.errors import EmbeddingFailed
from milepost.embedders.threads import ModelThread

INSTALL = "Install the extra: pip install 'milepost[neural]' (torch for CPUs: see docs/memory.md)"
HEAD_BYTES = 1024 * 1024
MAX_CHARACTERS = 32_768
"""Of a text that are looked at; models read fewer tokens than this."""

_log = structlog.get_logger(__name__)


def installed() -> bool:
    """Whether the library is installed. Imports nothing."""
    return find_spec("sentence_transformers") is not None


class SentenceTransformerEmbedder:
    """Embedder of the space `sentence-transformers/MODEL`.

    A model in a folder is told from another one of that name by its files.
    """

    neural = True

    def __init__(self, config: LocalEmbedder, *, threads: int, seconds: float, load_seconds: float) -> None:
        self._config = config
        self._threads = threads
        self._owner = f"The model {config.model}"
        self._thread = ModelThread(self._owner, self._load, seconds=seconds, load_seconds=load_seconds)

    @cached_property
    def space(self) -> EmbeddingSpace:
        """Identity of its vectors. Raises EmbeddingFailed if the folder of the model cannot be read."""
        folder = Path(self._config.model).expanduser()
        name = f"{folder.name}-{_fingerprint(folder)}" if folder.is_absolute() else self._config.model
        return EmbeddingSpace(f"sentence-transformers/{name}", self._config.dimensions)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """See `ports.embeddings.Embedder`."""
        _ = self.space
        return await self._thread.run(texts, self._embed)

    async def close(self) -> None:
        """Forget the model."""
        await self._thread.close()

    def _embed(self, model: Any, texts: Sequence[str]) -> list[bytes]:
        import numpy as np

        clean = [text[:MAX_CHARACTERS].encode("utf-8", "replace").decode("utf-8") for text in texts]
        found = model.encode(clean, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False)
        return [np.asarray(vector, dtype="<f4").tobytes() for vector in found]

    def _load(self) -> Any:
        if not installed():
            raise EmbeddingFailed(f"{self._owner} needs sentence-transformers.", fix=INSTALL)
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(self._threads)
        model = self._opened(SentenceTransformer)
        size = len(model.encode("x", show_progress_bar=False))
        if size != self._config.dimensions:
            raise EmbeddingFailed(
                f"{self._owner} has {size} dimensions, and {self._config.dimensions} are configured.",
                fix=f"Set its dimensions to {size}.",
            )
        return model

    def _opened(self, make: Callable[..., Any]) -> Any:
        where = str(Path(self._config.model).expanduser())
        try:
            return make(where, device="cpu", local_files_only=True)
        except (OSError, ValueError) as error:
            if Path(where).is_absolute() or not self._config.download:
                raise EmbeddingFailed(
                    f"{self._owner} is not on this machine.",
                    fix="Name the folder of a model, or set `download: true` for it.",
                ) from error
        # The library shows how far it is on standard error.
        _log.info("downloading a model", model=self._config.model)
        model = make(self._config.model, device="cpu")
        _log.info("downloaded a model", model=self._config.model)
        return model


def _fingerprint(folder: Path) -> str:
    """Tells two models of one name apart: names, sizes and beginnings of their weights and configuration."""
    digest = hashlib.sha256()
    try:
        files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".safetensors", ".bin", ".json")]
        for path in files[:200]:
            with path.open("rb") as file:
                digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
                digest.update(file.read(HEAD_BYTES))
    except OSError as error:
        raise EmbeddingFailed(f"The model {folder} cannot be read: {error.strerror}.") from error
    if not files:
        raise EmbeddingFailed(f"The folder {folder} holds no model.", fix="Name the folder with its config.json.")
    return digest.hexdigest()[:12]
