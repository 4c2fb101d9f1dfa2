"""Reconciliation: what the ledger calls running is compared with what Temporal knows. Works when Temporal does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from milepost.domain.errors import MilepostError, StorageUnavailable, TemporalUnavailable
from milepost.domain.turns import Turn, TurnState
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx, OutboxItem
from milepost.ports.system import Clock
from milepost.ports.workflows import WorkflowStarter, WorkflowState
from milepost.services.finishing import Ending, end_turn

LEASE_NAME = "reconcile"
LEASE_US = 60_000_000
DISPATCH_DEADLINE_US = 3_600_000_000
"""An undelivered start is given up after one hour."""
PAGE = 200

CloseCalls = Callable[[Turn], Awaitable[None]]
"""Ends what still runs for a turn in this host's sandboxes and records how; never raises."""

_log = get_logger(__name__)


class Reconciler:
    """One pass over all running turns, by whoever holds the lease."""

    def __init__(
        self,
        ledger: Ledger,
        starter: WorkflowStarter,
        clock: Clock,
        owner: str,
        close_calls: CloseCalls | None = None,
        dispatch_deadline_us: int = DISPATCH_DEADLINE_US,
    ) -> None:
        self._ledger = ledger
        self._starter = starter
        self._clock = clock
        self._owner = owner
        self._close_calls = close_calls
        self._deadline = dispatch_deadline_us

    async def run_once(self) -> int:
        """Return how many turns were ended; 0 without the lease. Raises StorageUnavailable."""
        now = self._clock.now()
        if not await self._ledger.write(lambda tx: tx.leases.acquire(LEASE_NAME, self._owner, now, LEASE_US)):
            return 0
        ended = 0
        after: str | None = None
        while True:
            page = await self._ledger.read(partial(_running, after=after))
            for turn, pending in page:
                ended += await self._check_alone(turn, pending)
            if len(page) < PAGE:
                return ended
            after = page[-1][0].turn_id

    async def release(self) -> None:
        """Give the lease up at shutdown."""
        await self._ledger.write(lambda tx: tx.leases.release(LEASE_NAME, self._owner))

    async def _check_alone(self, turn: Turn, pending: OutboxItem | None) -> int:
        """One turn that cannot be read must not keep the others from being checked."""
        try:
            return await self._check(turn, pending)
        except StorageUnavailable:
            raise
        except MilepostError as error:
            _log.error("reconcile.failed", turn_id=turn.turn_id, error=error.code, detail=error.message)
            return 0

    async def _check(self, turn: Turn, pending: OutboxItem | None) -> int:
        now = self._clock.now()
        if turn.claimed_run is None and turn.dispatched_at is None:
            if pending is None or now - turn.created_at < self._deadline:
                return 0
            why = f"Temporal did not accept the turn before the deadline. Last error: {pending.last_error or 'none'}."
            return await self._end(turn, Ending(TurnState.INTERRUPTED, why))
        try:
            state = await self._starter.state(turn.workflow_id)
        except TemporalUnavailable:
            return 0
        if state is WorkflowState.RUNNING:
            return 0
        if turn.stop_requested_at is not None:
            return await self._end(turn, Ending(TurnState.STOPPED, "Stopped; its workflow had ended already."))
        if state is WorkflowState.CANCELED:
            return await self._end(turn, Ending(TurnState.STOPPED, "The turn was cancelled in Temporal."))
        why = f"The turn's workflow is {state.replace('_', ' ')} in Temporal and did not finish the turn."
        return await self._end(turn, Ending(TurnState.INTERRUPTED, why))

    async def _end(self, turn: Turn, ending: Ending) -> int:
        if self._close_calls is not None and turn.claimed_run is not None:
            await self._close_calls(turn)
        now = self._clock.now()

        def body(tx: LedgerTx) -> int:
            tx.turns.lock_session(turn.session_id)
            current = tx.turns.get(turn.turn_id)
            # The world moved on since the check: leave it to the next pass.
            if current.state.terminal or current.claimed_run != turn.claimed_run:
                return 0
            end_turn(tx, current, ending, now)
            return 1

        ended = await self._ledger.write(body)
        if ended:
            _log.warning("turn.reconciled", turn_id=turn.turn_id, state=ending.state, reason=ending.reason)
        return ended


def _running(tx: LedgerTx, *, after: str | None) -> list[tuple[Turn, OutboxItem | None]]:
    turns = tx.turns.list_running(after=after, limit=PAGE)
    return [(turn, tx.outbox.pending(turn.turn_id)) for turn in turns]
