"""Semantic memory in the ledger's database, for instances of several processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from milepost.domain.memory import Scope
from milepost.ports.ledger import Ledger
from milepost.ports.semantic_records import SemanticRecords

T = TypeVar("T")


class LedgerSemanticStore:
    """`ports.semantic_records.SemanticStore`. What is erased is gone from the tables; PostgreSQL frees it by vacuum."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def write(self, scope: Scope, body: Callable[[SemanticRecords], T], *, erases: bool = False) -> T:
        return await self._ledger.write(lambda tx: body(tx.semantic(scope)))

    async def read(self, scope: Scope, body: Callable[[SemanticRecords], T]) -> T | None:
        return await self._ledger.read(lambda tx: body(tx.semantic(scope)))

    async def size(self, scope: Scope) -> int:
        return 0

    async def close(self) -> None:
        """The ledger is not closed: it is somebody else's."""
