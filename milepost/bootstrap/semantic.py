"""Semantic memory of an instance."""

from __future__ import annotations

from milepost.bootstrap.data_root import DataRoot
from milepost.memory.places import Places
from milepost.memory.semantic import IndexedMemory
from milepost.memory.semantic_ledger import LedgerSemanticStore
from milepost.ports.embeddings import Embedders
from milepost.ports.ledger import Ledger
from milepost.storage.semantic_files import FileSemanticStore


def open_semantic(root: DataRoot, ledger: Ledger, embedders: Embedders, *, database_url: str) -> IndexedMemory:
    """Files beside a ledger on SQLite, which belong to one host; else tables of the ledger. Close it before the ledger.

    Nothing is read or made before it is needed.
    """
    files = database_url.startswith("sqlite")
    store = FileSemanticStore(Places(root.path).semantic) if files else LedgerSemanticStore(ledger)
    return IndexedMemory(store, embedders.default)
