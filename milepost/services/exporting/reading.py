"""Reading a Session from its first event to its last, in bounded batches, up to one point in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TypeVar

from milepost.domain.budgets import Limits, Spending
from milepost.domain.events import Event, TurnBegun
from milepost.domain.sessions import Session
from milepost.domain.turns import Turn
from milepost.engine.budgets import session_scope
from milepost.ledger.chain import StoredEvent
from milepost.ledger.codec import decode_event
from milepost.ledger.story import Block, Story
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.batches import bounded_batch

T = TypeVar("T")

BATCH_EVENTS = 500
BATCH_BYTES = 2 * 1024 * 1024
ROWS = 200


@dataclass(frozen=True, slots=True)
class Span:
    """A Session up to event `head`, the last one when reading began."""

    session: Session
    head: int
    head_hash: bytes
    last_number: int
    spending: Spending
    limits: Limits


class SpanReader:
    """Reads one Session. What is appended after `open` is not read."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def open(self, session_id: str) -> Span:
        """Raises SessionNotFound."""

        def body(tx: LedgerTx) -> Span:
            session = tx.sessions.get(session_id)
            head, digest = tx.events.head(session_id)
            last = tx.turns.page(session_id, before_number=None, limit=1)
            spent, limits = tx.budgets.spending(session_scope(session_id)), tx.budgets.limits(session_id)
            return Span(session, head, digest, last[0].number if last else 0, spent, limits)

        return await self._ledger.read(body)

    async def events(self, span: Span) -> AsyncGenerator[list[StoredEvent], None]:
        """The stored events in order, batch by batch."""
        after = 0
        while after < span.head:
            start = after

            def read(tx: LedgerTx, start: int = start) -> list[StoredEvent]:
                def page(last: StoredEvent | None, limit: int) -> list[StoredEvent]:
                    at = start if last is None else last.seq
                    return tx.events.read(span.session.session_id, after=at, before=span.head + 1, limit=limit)

                size = _payload_bytes
                return bounded_batch(page, size, count=BATCH_EVENTS, max_bytes=BATCH_BYTES)[0]

            batch = await self._ledger.read(read)
            if not batch:
                return
            yield batch
            after = batch[-1].seq

    async def turns(self, span: Span) -> AsyncGenerator[list[Turn], None]:
        """Turn rows in ascending order, page by page."""
        for first in range(1, span.last_number + 1, ROWS):
            page = await self._ledger.read(
                lambda tx, before=first + ROWS: tx.turns.page(  # type: ignore[misc]
                    span.session.session_id, before_number=before, limit=ROWS
                )
            )
            yield [turn for turn in reversed(page) if first <= turn.number <= span.last_number]

    async def blocks(self, span: Span, *, superseded: bool) -> AsyncGenerator[Block, None]:
        """What a person reads, in order."""
        story = Story(superseded=superseded)
        async for batch in self.events(span):
            decoded = await asyncio.to_thread(_decode, batch)
            begun = [event.turn_id for event in decoded if isinstance(event, TurnBegun)]
            rows = await self._ledger.read(lambda tx, ids=begun: {turn: tx.turns.get(turn) for turn in ids})  # type: ignore[misc]
            for event in decoded:
                blocks = story.begin(rows[event.turn_id]) if isinstance(event, TurnBegun) else story.add(event)
                for block in blocks:
                    yield block
        for block in story.end():
            yield block

    async def rows(
        self, read: Callable[[LedgerTx, T | None], list[T]], size: int = ROWS
    ) -> AsyncGenerator[list[T], None]:
        """Pages of rows: `read` gets the last row so far, and gives fewer than `size` at the end."""
        last: T | None = None
        while True:
            page = await self._ledger.read(lambda tx, last=last: read(tx, last))  # type: ignore[misc]
            if page:
                yield page
            if len(page) < size:
                return
            last = page[-1]


def _payload_bytes(event: StoredEvent) -> int:
    return len(event.payload)


def _decode(batch: list[StoredEvent]) -> list[Event]:
    return [decode_event(item.type, item.version, item.payload) for item in batch]
