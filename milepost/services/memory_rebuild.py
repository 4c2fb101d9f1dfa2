"""A Session's memory made anew from its events: after an import or a fork, or when a store was lost."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from milepost.domain.errors import InvalidInput, TurnNotFound
from milepost.domain.events import TERMINAL_TURN_EVENTS, AgentStarted, Event, StreamKind
from milepost.domain.forks import Fork
from milepost.domain.memory import BLOCK_LABEL, MAX_BLOCK_LIMIT, MAX_BLOCK_VERSIONS, BlockVersion, Scope
from milepost.domain.memory_events import BlockWritten, MemoryForgotten
from milepost.domain.semantic import MAX_ENTRIES
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import decode_event
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.memory import CoreBlocks, DailyLog
from milepost.ports.semantic import SemanticMemory
from milepost.services.contents import Contents
from milepost.services.forgotten import forgotten_in_fork
from milepost.services.turn_entries import TurnEntries

BATCH = 500
MAX_FORGOTTEN = MAX_ENTRIES
_ENDS = frozenset(cls.TYPE for cls in TERMINAL_TURN_EVENTS)
_OF_PEOPLE = (BlockWritten.TYPE, MemoryForgotten.TYPE)
_NO_MEMORY = b'"memory":null'
"""In the canonical payload of an agent's start without memory: most need not be decoded."""


@dataclass(slots=True)
class _Blocks:
    """Versions of private blocks by owner and label, in order."""

    found: dict[tuple[Scope, str], list[BlockVersion]] = field(default_factory=dict)

    def add(self, scope: Scope, item: StoredEvent, event: BlockWritten, turn_number: int) -> None:
        versions = self.found.setdefault((scope, event.label), [])
        key = item.key.removesuffix("/block")
        versions.append(
            BlockVersion(0, event.value, item.at, event.by, key, event.turn_id or "", turn_number, event.note)
        )


class MemoryRebuild:
    """Empties what a Session's agents have in memory, and writes it again; what was forgotten stays so.

    Shared blocks belong to no Session and are left alone.
    """

    def __init__(
        self, ledger: Ledger, contents: Contents, blocks: CoreBlocks, daily: DailyLog, semantic: SemanticMemory
    ) -> None:
        self._ledger = ledger
        self._turns = TurnEntries(ledger, contents)
        self._blocks = blocks
        self._daily = daily
        self._semantic = semantic

    async def run(self, session_id: str) -> None:
        """Doing it again, also after it was cut short, ends in the same.

        Raises SessionNotFound, MemoryUnavailable, StorageUnavailable.
        """
        await self._inherit(session_id)
        for scope in await self._owners(session_id):
            await self._blocks.drop(scope)
            await self._daily.drop(scope)
            await self._semantic.delete(scope)
        blocks = _Blocks()
        inherited = await self._inherited(session_id)
        async for item in self._events(session_id):
            if item.type in _ENDS and item.turn_id is not None:
                while inherited and inherited[0].at < item.at:
                    await self._forget(session_id, inherited.pop(0))
                await self._turn(item.turn_id)
            elif item.type == BlockWritten.TYPE:
                await self._block(session_id, item, blocks)
            elif item.type == MemoryForgotten.TYPE:
                await self._forget(session_id, item)
        for (scope, label), versions in blocks.found.items():
            for number, version in enumerate(_in_time(versions), 1):
                await self._blocks.write(scope, label, replace(version, number=number))

    async def _turn(self, turn_id: str) -> None:
        _, remembered = await self._turns.of(turn_id)
        for each in remembered:
            await self._daily.append(each.scope, each.dated())
            await self._semantic.add(each.scope, each.entries)

    async def _block(self, session_id: str, item: StoredEvent, blocks: _Blocks) -> None:
        event = _decoded(item)
        if isinstance(event, BlockWritten) and _is_good(event):
            number = await self._ledger.read(lambda tx: _number(tx, event.turn_id))
            scope = _scope(session_id, event.owner)
            if scope is not None:
                blocks.add(scope, item, event, number)

    async def _forget(self, session_id: str, item: StoredEvent) -> None:
        event = _decoded(item)
        scope = _scope(session_id, event.owner) if isinstance(event, MemoryForgotten) else None
        if isinstance(event, MemoryForgotten) and scope is not None:
            # An import may name what no store can hold; nothing of that is in memory, and the rest is to be made.
            with suppress(InvalidInput):
                await self._semantic.forget(scope, event.ids[:MAX_FORGOTTEN], event.by)

    async def _owners(self, session_id: str) -> set[Scope]:
        found: set[Scope] = set()
        async for item in self._events(session_id):
            event: Event | None = None
            if item.type == AgentStarted.TYPE and _NO_MEMORY not in item.payload:
                event = _decoded(item)
            if isinstance(event, AgentStarted) and event.memory is not None:
                found.add(Scope.of_part(session_id, event.agent))
            elif item.type == BlockWritten.TYPE:
                written = _decoded(item)
                scope = _scope(session_id, written.owner) if isinstance(written, BlockWritten) else None
                found |= {scope} if scope is not None else set()
        return found

    async def _inherit(self, session_id: str) -> None:
        """A fork goes on with what people had written into private blocks by then, which is of no turn.

        What people had forgotten before it was made is forgotten in it, whatever its point: that is meant for good.
        """
        fork = await self._ledger.read(lambda tx: tx.forks.get(session_id))
        if fork is None:
            return
        until = await self._ledger.read(lambda tx: _point_of(tx, fork))
        found: list[tuple[str, int, BlockWritten | MemoryForgotten]] = []
        async for item in self._events(fork.source_id):
            if item.type not in _OF_PEOPLE or item.turn_id is not None or item.at > fork.created_at:
                continue
            event = _decoded(item)
            if isinstance(event, MemoryForgotten) or (
                isinstance(event, BlockWritten) and not event.shared and item.at <= until
            ):
                found.append((f"{session_id}/inherited/{item.key}", item.at, event))

        def body(tx: LedgerTx, part: list[tuple[str, int, BlockWritten | MemoryForgotten]]) -> None:
            events = [
                forgotten_in_fork(tx, event, fork.source_id, session_id)
                if isinstance(event, MemoryForgotten)
                else event
                for _, _, event in part
            ]
            new = [NewEvent(key, event, None, at) for (key, at, _), event in zip(part, events, strict=True)]
            tx.events.append(session_id, StreamKind.SESSION, new, until)

        for start in range(0, len(found), BATCH):
            await self._ledger.write(partial(body, part=found[start : start + BATCH]))

    async def _inherited(self, session_id: str) -> list[StoredEvent]:
        """What a fork forgets because people had in its source, in order of time: what was said later stays."""
        prefix = f"{session_id}/inherited/"
        found = [
            item
            async for item in self._events(session_id)
            if item.type == MemoryForgotten.TYPE and item.key.startswith(prefix)
        ]
        return sorted(found, key=lambda item: item.at)

    async def _events(self, session_id: str) -> AsyncIterator[StoredEvent]:
        last = 0
        while page := await self._ledger.read(
            lambda tx, after=last: tx.events.read(session_id, after=after, limit=BATCH)  # type: ignore[misc]
        ):
            for item in page:
                yield item
            last = page[-1].seq


def _decoded(item: StoredEvent) -> Event:
    return decode_event(item.type, item.version, item.payload)


def _scope(session_id: str, owner: str) -> Scope | None:
    """The owner that an event names; None for what no release has written."""
    try:
        return Scope.named(session_id, owner)
    except InvalidInput:
        return None


def _is_good(event: BlockWritten) -> bool:
    """Whether it is of a private block, and could have been written here: an import may hold anything."""
    fits = len(event.value) <= MAX_BLOCK_LIMIT and re.fullmatch(BLOCK_LABEL, event.label) is not None
    return fits and not event.shared


def _number(tx: LedgerTx, turn_id: str | None) -> int:
    if turn_id is None:
        return 0
    try:
        return tx.turns.get(turn_id).number
    except TurnNotFound:
        return 0


def _point_of(tx: LedgerTx, fork: Fork) -> int:
    """Until when the source's course is the fork's: the beginning of the turn after its point, or the fork itself."""
    try:
        following = tx.turns.numbered(fork.source_id, fork.to_number + 1)
    except TurnNotFound:
        return fork.created_at
    return min(following.created_at, fork.created_at)


def _in_time(versions: list[BlockVersion]) -> list[BlockVersion]:
    """The newest that are kept, in order of time: a fork has people's edits after its turns."""
    return sorted(versions, key=lambda version: version.at)[-MAX_BLOCK_VERSIONS:]
