"""Running a model beside the event loop: one thread, a bounded number of waiting calls, an end to waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from milepost.domain.errors import EmbeddingFailed

BATCH = 32
"""Texts that are embedded without a look at who else waits, or whether anybody still does."""

MAX_WAITING = 256
"""Calls that wait for a model at a time."""


class ModelThread:
    """The thread of one model. Models are not safe to call from several threads, and gain nothing from it.

    `owner` names the model in messages.
    """

    def __init__(self, owner: str, load: Callable[[], Any], *, seconds: float, load_seconds: float) -> None:
        self._owner = owner
        self._load = load
        self._seconds = seconds
        self._load_seconds = load_seconds
        self._executor: ThreadPoolExecutor | None = None
        self._model: Any = None
        self._waiting = 0

    async def run(self, texts: Sequence[str], embed: Callable[[Any, Sequence[str]], list[bytes]]) -> list[bytes]:
        """`embed(model, texts)` of all texts, in batches. Loads the model at the first call.

        Raises:
            EmbeddingFailed: the model cannot be loaded, it failed, it took too long, or too many calls wait for it.
        """
        if not texts:
            return []
        if self._waiting >= MAX_WAITING:
            raise EmbeddingFailed(f"{MAX_WAITING} calls wait for {self._owner} already.", fix="Try again later.")
        self._waiting += 1
        try:
            model = await self._loaded()
            vectors: list[bytes] = []
            async with asyncio.timeout(self._seconds):
                for first in range(0, len(texts), BATCH):
                    vectors += await self._in_thread(embed, model, texts[first : first + BATCH])
            return vectors
        except TimeoutError:
            raise EmbeddingFailed(
                f"{self._owner} did not embed {len(texts)} texts within {self._seconds:g} s.",
                fix="Raise embeddings.seconds, or use a faster embedder.",
            ) from None
        finally:
            self._waiting -= 1

    async def _loaded(self) -> Any:
        if self._model is None:
            try:
                async with asyncio.timeout(self._load_seconds):
                    self._model = await self._in_thread(self._load_once)
            except TimeoutError:
                raise EmbeddingFailed(
                    f"{self._owner} was not loaded within {self._load_seconds:g} s.",
                    fix="Raise embeddings.load_seconds, or check what it waits for.",
                ) from None
        return self._model

    def _load_once(self) -> Any:
        # Several calls may have waited for this thread.
        if self._model is None:
            self._model = self._load()
        return self._model

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="milepost-embedder")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
        except (EmbeddingFailed, TimeoutError):
            raise
        except Exception as error:  # of whatever library
            raise EmbeddingFailed(
                f"{self._owner} failed: {type(error).__name__}: {str(error)[:500]}",
                fix="Run `milepost doctor`; another embedder can be set as embeddings.default.",
            ) from error

    async def close(self) -> None:
        """Wait for the batch that runs, and forget the model."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.to_thread(executor.shutdown, wait=True, cancel_futures=True)
        self._model = None
