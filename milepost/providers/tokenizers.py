"""Exact token counts where the vocabulary is known: the extra `tokens` (quicktok-v1, with vocabularies inside)."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from milepost.domain.errors import ConfigInvalid
from milepost.domain.providers import HttpProvider, ProviderConfig

ENCODINGS = {"o200k": "o200k_base", "cl100k": "cl100k_base", "llama3": "llama3", "qwen3": "qwen3"}
"""The library's names by those of the configuration."""

Count = Callable[[str], float]


class Tokenizers:
    """`ports.models.TokenCounters` over the `tokenizers` of the providers.

    Raises:
        ConfigInvalid: a vocabulary is configured and the extra is not installed.
    """

    def __init__(self, providers: Mapping[str, ProviderConfig]) -> None:
        self._configured = {
            name: config.tokenizers
            for name, config in providers.items()
            if isinstance(config, HttpProvider) and config.tokenizers
        }
        if self._configured and importlib.util.find_spec("quicktok") is None:
            name = next(iter(self._configured))
            raise ConfigInvalid(
                "Exact token counts need the extra 'tokens', which is not installed.",
                field=f"providers.{name}.tokenizers",
                fix="Install milepost[tokens], or remove this key.",
            )

    async def of(self, provider: str, model: str) -> Count | None:
        for pattern, encoding in self._configured.get(provider, {}).items():
            if fnmatchcase(model, pattern):
                # A vocabulary takes seconds to load the first time: not on the loop.
                return await asyncio.to_thread(_counter, encoding)
        return None


@lru_cache(maxsize=len(ENCODINGS))
def _counter(encoding: str) -> Count:
    import quicktok

    # Text that looks like a special token is text.
    encode = quicktok.get_encoding(ENCODINGS[encoding]).encode_ordinary

    def count(text: str) -> float:
        # A lone surrogate goes out as U+FFFD.
        return float(len(encode(text.encode("utf-8", "replace").decode("utf-8"))))

    return count
