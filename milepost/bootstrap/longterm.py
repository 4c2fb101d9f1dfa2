"""Long-term memory with the stores that the configuration names, each opened at its first use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.embedders import InstanceEmbedders
from milepost.bootstrap.system import SystemClock
from milepost.config.loading import Config
from milepost.domain.errors import MemoryStoreUnavailable, MilepostError, StorageUnavailable, ToolUnavailable
from milepost.domain.longterm import DEFAULT_STORE, StoreConfig
from milepost.ports.embeddings import Embedders
from milepost.ports.ledger import Ledger
from milepost.ports.longterm import STORES_GROUP, LongTermStore
from milepost.services.longterm.ledger_store import LedgerLongTerm
from milepost.services.longterm.service import LongTermMemory
from milepost.services.longterm.upkeep import remove_expired
from milepost.storage import open_ledger, open_notifier

STORE_SECONDS = 60.0
"""How long a call of a package's store may take."""

FOLDER = "memory-stores"


class Stores:
    """The stores of an instance by name."""

    def __init__(self, config: Config, root: DataRoot, ledger: Ledger) -> None:
        self._configs = config.long_term.stores
        self._root = root
        self._open: dict[str, LongTermStore] = {DEFAULT_STORE: LedgerLongTerm(ledger)}
        self._lock = asyncio.Lock()

    async def open(self, name: str) -> LongTermStore:
        """A store. Raises MemoryStoreUnavailable, StorageUnavailable."""
        if name not in self._open:
            async with self._lock:
                if name not in self._open:
                    self._open[name] = await self._opened(name)
        return self._open[name]

    async def _opened(self, name: str) -> LongTermStore:
        config = self._configs.get(name)
        if config is None:
            raise MemoryStoreUnavailable(
                f"The configuration has no store '{name}'.", fix=f"Add it under long_term_memory.stores.{name}."
            )
        make = await asyncio.to_thread(_factory, name, config)
        folder = self._root.path / FOLDER / name
        await asyncio.to_thread(lambda: folder.mkdir(mode=0o700, parents=True, exist_ok=True))
        inner = await _guarded(name, make)(dict(config.settings), folder)
        return cast(LongTermStore, GuardedStore(name, inner))

    async def close(self) -> None:
        """Close every store that is open."""
        opened, self._open = list(self._open.values()), {}
        for store in opened:
            await store.close()


class GuardedStore:
    """A package's store, with an end to each call and errors that say whose they are."""

    def __init__(self, name: str, inner: Any) -> None:
        self._name = name
        self._inner = inner

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return _guarded(self._name, getattr(self._inner, method))


def _guarded(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*arguments: Any) -> Any:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                return await work(*arguments)
        except MilepostError:
            raise
        except TimeoutError:
            raise StorageUnavailable(f"The memory store '{name}' did not answer within {STORE_SECONDS:g} s.") from None
        except Exception as error:
            raise StorageUnavailable(
                f"The memory store '{name}' failed: {type(error).__name__}: {str(error)[:500]}"
            ) from error

    return call


def _factory(name: str, config: StoreConfig) -> Callable[..., Any]:
    from milepost.extensions.loading import load

    try:
        found = load(STORES_GROUP, config.entry_point, object, f"Memory store '{name}'")
    except ToolUnavailable as error:
        raise MemoryStoreUnavailable(error.message, fix=error.fix) from error
    if not callable(found):
        raise MemoryStoreUnavailable(f"Memory store '{name}': its entry point names nothing that can be called.")
    return found


@asynccontextmanager
async def open_long_term(
    config: Config, root: DataRoot, ledger: Ledger, embedders: Embedders
) -> AsyncIterator[LongTermMemory]:
    """Long-term memory over an open ledger."""
    stores = Stores(config, root, ledger)
    try:
        yield LongTermMemory(stores.open, embedders, SystemClock(), config.long_term)
    finally:
        await stores.close()


@asynccontextmanager
async def open_memory_alone(config: Config, root: DataRoot) -> AsyncIterator[LongTermMemory]:
    """Long-term memory with nothing else of the instance. Raises StorageUnavailable, SchemaOutdated, SchemaTooNew."""
    url = config.database_url()
    notifier = await open_notifier(url)
    try:
        ledger = await open_ledger(url, notifier)
        embedders = InstanceEmbedders(config)
        try:
            async with open_long_term(config, root, ledger, embedders) as memory:
                yield memory
        finally:
            await embedders.close()
            await ledger.close()
    finally:
        await notifier.close()


async def remove_expired_records(config: Config, root: DataRoot, *, dry_run: bool) -> int:
    """Delete the records of every store whose time is over; returns how many."""
    async with open_memory_alone(config, root) as memory:
        count = 0
        for name in (DEFAULT_STORE, *config.long_term.stores):
            store = await memory.open_store(name)
            count += await remove_expired(store, memory.clock.now(), dry_run=dry_run)
        return count
