"""The dispatcher: one pass over the outbox. Run in a loop by every worker process; passes never overlap on an item."""

from __future__ import annotations

import asyncio

from milepost.domain.errors import TemporalUnavailable
from milepost.domain.turns import Turn
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx, OutboxItem, OutboxKind
from milepost.ports.system import Clock
from milepost.ports.workflows import EnvironmentStart, TurnStart, WorkflowStarter

LEASE_US = 15_000_000
"""Longer than one delivery may take (the starter gives up after 10 s); a killed dispatcher's items wait for its end."""

RETRY_FIRST_US = 500_000
RETRY_MAX_US = 15_000_000
BATCH = 32

_log = get_logger(__name__)


class Dispatcher:
    """Delivers what the ledger asks of Temporal: starts, cancellations, word of answered approvals."""

    def __init__(self, ledger: Ledger, starter: WorkflowStarter, clock: Clock, owner: str) -> None:
        self._ledger = ledger
        self._starter = starter
        self._clock = clock
        self._owner = owner

    async def run_once(self) -> int:
        """Lease and deliver up to 32 items; return how many were delivered. Raises StorageUnavailable."""
        leased = await self._ledger.write(self._lease)
        return sum(await asyncio.gather(*(self._deliver(*each) for each in leased)))

    def _lease(self, tx: LedgerTx) -> list[tuple[OutboxItem, Turn | None, str]]:
        leased: list[tuple[OutboxItem, Turn | None, str]] = []
        for item in tx.outbox.lease(self._owner, self._clock.now(), LEASE_US, BATCH):
            if item.kind is OutboxKind.PREPARE_ENVIRONMENT:
                session_id, _ = _environment_of(item)
                leased.append((item, None, tx.sessions.get(session_id).title))
                continue
            turn = tx.turns.get(_turn_of(tx, item))
            leased.append((item, turn, tx.sessions.get(turn.session_id).title))
        return leased

    async def _deliver(self, item: OutboxItem, turn: Turn | None, title: str) -> int:
        try:
            if turn is None:
                await self._starter.start_environment(EnvironmentStart(*_environment_of(item), title))
            elif item.kind is OutboxKind.CANCEL_TURN:
                await self._starter.cancel(turn.workflow_id)
            elif turn.state.terminal:
                pass
            elif item.kind is OutboxKind.ANSWER_APPROVAL:
                await self._starter.answer(turn.workflow_id, item.subject)
            else:
                await self._starter.start_turn(_start(turn, title))
        except TemporalUnavailable as error:
            due = self._clock.now() + min(RETRY_FIRST_US * 2 ** min(item.attempts, 10), RETRY_MAX_US)
            message = str(error)
            await self._ledger.write(lambda tx: tx.outbox.retry(item.item_id, due, message))
            _log.warning("outbox.retry", kind=item.kind, subject=item.subject, error=error.code)
            return 0
        await self._ledger.write(lambda tx: self._done(tx, item, turn))
        return 1

    def _done(self, tx: LedgerTx, item: OutboxItem, turn: Turn | None) -> None:
        now = self._clock.now()
        tx.outbox.delivered(item.item_id, now)
        if turn is not None and item.kind is OutboxKind.START_TURN:
            tx.turns.mark_dispatched(turn.turn_id, now)
            tx.notify(turn.session_id)


def _environment_of(item: OutboxItem) -> tuple[str, int]:
    session_id, _, generation = item.subject.rpartition("/")
    return session_id, int(generation)


def _turn_of(tx: LedgerTx, item: OutboxItem) -> str:
    if item.kind is OutboxKind.ANSWER_APPROVAL:
        return tx.approvals.get(item.subject).turn_id
    return item.subject


def _start(turn: Turn, title: str) -> TurnStart:
    return TurnStart(
        workflow_id=turn.workflow_id,
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        title=title,
        agent=turn.request.options.agent or "",
    )
