"""Files of before 1.0 as inputs of an instance's memory."""

from __future__ import annotations

from milepost.bootstrap.data_root import DataRoot
from milepost.memory.legacy import LegacyBlocks, LegacyDailyLog, LegacySemantic
from milepost.memory.legacy_files import LegacyFiles
from milepost.services.memory_stores import MemoryStores


def with_legacy(root: DataRoot, stores: MemoryStores) -> MemoryStores:
    """The stores, which also read what lies in the data root in the layout of docs/legacy.md."""
    files = LegacyFiles(root.path)
    return MemoryStores(
        LegacyBlocks(stores.blocks, files),
        LegacyDailyLog(stores.daily, files),
        LegacySemantic(stores.semantic, files),
    )
