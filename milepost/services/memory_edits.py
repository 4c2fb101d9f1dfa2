"""Edits of memory with their record in the ledger: by an agent's tool calls, and by people."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from milepost.domain.events import Event, StreamKind
from milepost.domain.memory import BlockSpec, BlockVersion, Scope
from milepost.domain.memory_events import BlockWritten, MemoryForgotten
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.semantic import SemanticMemory
from milepost.ports.system import Clock
from milepost.services.blocks import Author, BlockService, Change

T = TypeVar("T")


class MemoryEdits:
    """Writes to memory and then tells the Session's stream, also if whoever asked goes away in between.

    `author.key` makes doing it again harmless: a call whose worker was lost after the write finds it and tells it.
    """

    def __init__(self, ledger: Ledger, clock: Clock, blocks: BlockService, semantic: SemanticMemory) -> None:
        self._ledger = ledger
        self._clock = clock
        self._blocks = blocks
        self._semantic = semantic
        self._running: set[asyncio.Task[Any]] = set()

    async def edit(
        self,
        session_id: str | None,
        owner: Scope,
        spec: BlockSpec,
        author: Author,
        change: Change,
        expected: int | None = None,
    ) -> BlockVersion:
        """Edit a block; see `BlockService.edit`. `session_id` is None for a person who edits a shared block."""

        async def work() -> BlockVersion:
            version = await self._blocks.edit(owner, spec, author, change, expected=expected)
            await self._tell_block(session_id, owner, spec, version)
            return version

        return await self._whole(work())

    async def revert(
        self, session_id: str | None, owner: Scope, spec: BlockSpec, author: Author, to: int
    ) -> BlockVersion:
        """Revert a block; see `BlockService.revert`."""

        async def work() -> BlockVersion:
            version = await self._blocks.revert(owner, spec, author, to)
            await self._tell_block(session_id, owner, spec, version)
            return version

        return await self._whole(work())

    async def forget(self, owner: Scope, ids: list[str], author: Author) -> list[str]:
        """Forget records; the ids of those that are gone.

        The event comes first: what is erased must not come back when the memory is made anew.
        """

        async def work() -> list[str]:
            session_id, key = str(owner.session_id), f"{author.key}/forgotten"
            told = await self._ledger.read(lambda tx: tx.events.find(session_id, key))
            if told is not None:
                event = decode_event(told.type, told.version, told.payload)
                known = event.ids if isinstance(event, MemoryForgotten) else ()
                await self._semantic.forget(owner, known, author.by)
                return list(known)
            there = await self._semantic.entries_of(owner, ids)
            if not there:
                return []
            turn_id, effect_id = author.turn_id or None, author.key if author.turn_id else None
            await self._tell(
                session_id, key, MemoryForgotten(turn_id, effect_id, owner.owner, tuple(there), author.by), turn_id
            )
            return await self._semantic.forget(owner, there, author.by)

        return await self._whole(work())

    async def _tell_block(self, session_id: str | None, owner: Scope, spec: BlockSpec, version: BlockVersion) -> None:
        if session_id is None:
            return
        event = BlockWritten(
            turn_id=version.turn_id or None,
            effect_id=version.key if version.turn_id else None,
            owner=owner.owner,
            label=spec.label,
            shared=spec.shared,
            number=version.number,
            value=version.value,
            by=version.by,
            note=version.note,
        )
        await self._tell(session_id, f"{version.key}/block", event, version.turn_id or None)

    async def _tell(self, session_id: str, key: str, event: Event, turn_id: str | None) -> None:
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            tx.events.append(session_id, StreamKind.SESSION, [NewEvent(key, event, turn_id)], now)
            tx.notify(session_id)

        await self._ledger.write(body)

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it to the end, whether or not somebody still waits for it."""
        task: asyncio.Task[T] = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for edits that nobody waits for any more."""
        await asyncio.gather(*self._running, return_exceptions=True)
