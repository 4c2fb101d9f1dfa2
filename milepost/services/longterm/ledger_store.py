"""The built-in store of long-term memory: the ledger's database, SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.domain.embeddings import EmbeddingSpace
from milepost.ports.ledger import Ledger
from milepost.ports.longterm import Change, Namespace, Stored, Vector, Write


class LedgerLongTerm:
    """`ports.longterm.LongTermStore`. Each call is a transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def namespaces(self, after: str, limit: int) -> list[Namespace]:
        return await self._ledger.read(lambda tx: tx.long_term.namespaces(after, limit))

    async def namespace(self, name: str) -> Namespace | None:
        return await self._ledger.read(lambda tx: tx.long_term.namespace(name))

    async def get(self, namespace: str, keys: Sequence[str]) -> dict[str, Stored]:
        return await self._ledger.read(lambda tx: tx.long_term.get(namespace, keys))

    async def page(self, namespace: str, after: str, limit: int) -> list[Stored]:
        return await self._ledger.read(lambda tx: tx.long_term.page(namespace, after, limit))

    async def put(self, namespace: str, writes: Sequence[Write]) -> list[Stored]:
        return await self._ledger.write(lambda tx: tx.long_term.put(namespace, writes)) if writes else []

    async def delete(self, namespace: str, key: str, expected: int | None, at: int) -> bool:
        return await self._ledger.write(lambda tx: tx.long_term.delete(namespace, key, expected, at))

    async def changes(self, namespace: str, after: int, limit: int) -> list[Change]:
        return await self._ledger.read(lambda tx: tx.long_term.changes(namespace, after, limit))

    async def vectors(self, namespace: str, keys: Sequence[str]) -> dict[str, Vector]:
        return await self._ledger.read(lambda tx: tx.long_term.vectors(namespace, keys))

    async def put_vectors(self, namespace: str, vectors: Sequence[tuple[str, int, Vector]]) -> int:
        return await self._ledger.write(lambda tx: tx.long_term.put_vectors(namespace, vectors)) if vectors else 0

    async def lacking(self, namespace: str, space: EmbeddingSpace, after: str, limit: int) -> list[Stored]:
        return await self._ledger.read(lambda tx: tx.long_term.lacking(namespace, space, after, limit))

    async def switch(self, namespace: str, space: EmbeddingSpace, changes: int) -> bool:
        return await self._ledger.write(lambda tx: tx.long_term.switch(namespace, space, changes))

    async def drop_others(self, namespace: str, limit: int) -> int:
        return await self._ledger.write(lambda tx: tx.long_term.drop_others(namespace, limit))

    async def expired(self, now: int, limit: int) -> list[tuple[str, str]]:
        return await self._ledger.read(lambda tx: tx.long_term.expired(now, limit))

    async def forget(self, before: int, limit: int) -> int:
        return await self._ledger.write(lambda tx: tx.long_term.forget(before, limit))

    async def close(self) -> None:
        """The ledger closes itself."""
