"""The memory of an instance."""

from __future__ import annotations

from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.legacy import with_legacy
from milepost.bootstrap.semantic import open_semantic
from milepost.memory.block_files import FileBlocks
from milepost.memory.daily_files import FileDailyLog
from milepost.memory.ledger import LedgerBlocks, LedgerDailyLog
from milepost.ports.embeddings import Embedders
from milepost.ports.ledger import Ledger
from milepost.services.memory_stores import MemoryStores


def open_memory(root: DataRoot, ledger: Ledger, embedders: Embedders, *, database_url: str) -> MemoryStores:
    """Files beside a ledger on SQLite, which belong to one host; else tables of the ledger.

    Files of before 1.0 are read where there is nothing newer. Nothing is read or made before it is needed. Close the
    semantic memory before the ledger.
    """
    semantic = open_semantic(root, ledger, embedders, database_url=database_url)
    if database_url.startswith("sqlite"):
        return with_legacy(root, MemoryStores(FileBlocks(root.path), FileDailyLog(root.path), semantic))
    return MemoryStores(LedgerBlocks(ledger), LedgerDailyLog(ledger), semantic)
