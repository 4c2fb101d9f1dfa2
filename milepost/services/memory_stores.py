"""The stores of memory of one process, as its parts use them."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.ports.ledger import Ledger
from milepost.ports.memory import CoreBlocks, DailyLog
from milepost.ports.semantic import SemanticMemory
from milepost.ports.system import Clock
from milepost.services.blocks import BlockService
from milepost.services.contents import Contents
from milepost.services.memory_edits import MemoryEdits
from milepost.services.memory_rebuild import MemoryRebuild


@dataclass(frozen=True, slots=True)
class MemoryStores:
    """Tiers 2 to 4."""

    blocks: CoreBlocks
    daily: DailyLog
    semantic: SemanticMemory

    def block_service(self, ledger: Ledger) -> BlockService:
        """Reading and editing blocks."""
        return BlockService(ledger, self.blocks)

    def edits(self, ledger: Ledger, clock: Clock) -> MemoryEdits:
        """Edits with their record in the ledger."""
        return MemoryEdits(ledger, clock, self.block_service(ledger), self.semantic)

    def rebuild(self, ledger: Ledger, contents: Contents) -> MemoryRebuild:
        """Making memory anew from the ledger."""
        return MemoryRebuild(ledger, contents, self.blocks, self.daily, self.semantic)
