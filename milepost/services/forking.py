"""Copying the turns of a fork, in batches, each a transaction; carried on where a kill interrupted it.

Steps have the same ids whoever makes them, and the Session's lock lets one at a time do so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from milepost.contracts.naming import turn_workflow_id
from milepost.domain.effects import Effect, EffectState
from milepost.domain.errors import InvalidInput, LedgerCorrupt, MilepostError, StorageUnavailable
from milepost.domain.events import Event, SessionForked, StreamKind
from milepost.domain.forks import Fork, ForkState
from milepost.domain.memory_events import MemoryForgotten
from milepost.domain.sessions import Session, SessionStatus
from milepost.domain.turns import Turn, TurnState
from milepost.domain.workspaces import RestoreState
from milepost.ledger.codec import decode_event
from milepost.ledger.copies import NOT_COPIED, copied_event, copied_id, copied_key, copied_request
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.snapshots import Snapshots
from milepost.ports.system import Clock
from milepost.services.copying import copy_used
from milepost.services.forgotten import forgotten_in_fork
from milepost.services.memory_tasks import rebuild_memory
from milepost.services.restores import RestoreService

BATCH_TURNS = 20
BATCH_BYTES = 8 * 1024 * 1024
PAGE = 200
EFFECTS_PAGE = 500
LEFT_ALONE_US = 60_000_000
"""A fork that is younger is left to the process that makes it."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork's Session and how far it is; the state that its files were taken from, if it got any."""

    session: Session
    fork: Fork
    tree: str | None = None


class ForkCopier:
    """Writes the files of forks and copies their turns."""

    def __init__(self, ledger: Ledger, clock: Clock, snapshots: Snapshots | None) -> None:
        self._ledger = ledger
        self._clock = clock
        self._restores = RestoreService(ledger, clock, snapshots)

    async def carry_on(self, session_id: str) -> Forked:
        """Go on with a fork until it is done or failed. Raises SessionNotFound, StorageUnavailable, SnapshotFailed."""
        restore = await self._ledger.read(lambda tx: tx.workspaces.restore(session_id))
        if restore is not None and restore.state is RestoreState.PENDING:
            done = await self._restores.carry_out(restore)
            if done.error is not None:
                await self._ledger.write(partial(self._fail, session_id=session_id, error=done.error))
        while await self._ledger.write(partial(self._step, session_id=session_id)):
            pass
        return await self._ledger.read(partial(_forked, session_id=session_id))

    async def carry_on_all(self) -> None:
        """Go on with forks that a killed process left; for a loop. Raises StorageUnavailable."""
        before = self._clock.now() - LEFT_ALONE_US
        for fork in await self._ledger.read(lambda tx: tx.forks.copying(before)):
            try:
                await self.carry_on(fork.session_id)
            except StorageUnavailable:
                raise
            except MilepostError as error:
                _log.warning("fork.waits", session_id=fork.session_id, error=error.code, detail=error.message)

    def _fail(self, tx: LedgerTx, *, session_id: str, error: str) -> None:
        fork = tx.forks.get(session_id)
        if fork is not None and fork.state is ForkState.COPYING:
            tx.forks.save(replace(fork, state=ForkState.FAILED, error=error))

    def _step(self, tx: LedgerTx, *, session_id: str) -> bool:
        """Copy the next batch, or finish; False when there is nothing left to do."""
        tx.turns.lock_session(session_id)
        fork = tx.forks.get(session_id)
        if fork is None or fork.state is not ForkState.COPYING:
            return False
        numbers = _next_numbers(tx, fork)
        copied, size = 0, 0
        for number in numbers:
            turn = tx.turns.numbered(fork.source_id, number)
            size += self._copy(tx, fork, turn, fork.copied + copied + 1)
            copied += 1
            fork = replace(fork, done_number=number)
            if size > BATCH_BYTES:
                break
        fork = replace(fork, copied=fork.copied + copied)
        if not numbers:
            self._finish(tx, fork)
            return False
        tx.forks.save(fork)
        return True

    def _finish(self, tx: LedgerTx, fork: Fork) -> None:
        now = self._clock.now()
        event = SessionForked(fork.source_id, fork.to_number, fork.copied, fork.omitted, fork.files, fork.actor)
        tx.events.append(fork.session_id, StreamKind.SESSION, [NewEvent("session.forked", event)], now)
        tx.forks.save(replace(fork, state=ForkState.DONE))
        tx.sessions.set_status(fork.session_id, SessionStatus.ACTIVE, None)
        rebuild_memory(tx, fork.session_id, now)
        tx.notify(fork.session_id)

    def _copy(self, tx: LedgerTx, fork: Fork, old: Turn, number: int) -> int:
        """Copy a turn with its effects and events; return their bytes."""
        turn_id = copied_id(fork.session_id, old.turn_id, "trn_")
        workflow_id = turn_workflow_id(self._ledger.instance_id, turn_id)
        new = replace(
            old,
            turn_id=turn_id,
            session_id=fork.session_id,
            number=number,
            state=TurnState.RUNNING,
            request=copied_request(old.request, fork.session_id),
            idempotency_key=None,
            workflow_id=workflow_id,
            ended_at=None,
            error_code=None,
            error_message=None,
            superseded=False,
            copied_from=old.turn_id,
        )
        tx.turns.add(new)
        copy_used(tx, old, fork.session_id, turn_id, self._clock.now())
        ids = _copy_effects(tx, old, fork.session_id, turn_id)
        size, late = 0, False
        for item in tx.events.read_turn(fork.source_id, old.turn_id):
            size += len(item.payload)
            if item.type in NOT_COPIED:
                continue
            event: Event = copied_event(
                decode_event(item.type, item.version, item.payload), fork.session_id, turn_id, number, workflow_id
            )
            if isinstance(event, MemoryForgotten):
                event = forgotten_in_fork(tx, event, fork.source_id, fork.session_id)
            key = copied_key(item.key, fork.session_id, old.turn_id, turn_id, ids)
            tx.events.append(fork.session_id, StreamKind.SESSION, [NewEvent(key, event, turn_id)], item.at)
            if item.type.startswith("turn.") and item.type == f"turn.{old.state}" and not late:
                # What comes after the terminal event is of the kind that may.
                late = True
                tx.turns.finish(
                    turn_id, old.state, old.ended_at or item.at, old.usage, old.error_code, old.error_message
                )
        if not late:
            raise LedgerCorrupt(f"Turn {old.turn_id} has no terminal event, so it cannot be copied.")
        return size


def _copy_effects(tx: LedgerTx, old: Turn, session_id: str, turn_id: str) -> dict[str, str]:
    """Copy all effects of a turn; the copies' ids by those of their originals."""
    ids: dict[str, str] = {}
    last: str | None = None
    while page := tx.effects.page(old.session_id, turn_id=old.turn_id, state=None, limit=EFFECTS_PAGE, after=last):
        for effect in page:
            last = effect.spec.effect_id
            ids[last] = copied_id(session_id, last)
            _copy_effect(tx, effect, session_id, turn_id, ids[last])
    return ids


def _copy_effect(tx: LedgerTx, effect: Effect, session_id: str, turn_id: str, effect_id: str) -> None:
    """A settled row that nothing comes back to."""
    spec = replace(effect.spec, effect_id=effect_id, idempotency_key=effect_id, session_id=session_id, turn_id=turn_id)
    if effect.state is EffectState.DENIED:
        tx.effects.deny(spec, effect.created_at, effect.error_code or "denied", effect.error_message or "")
        return
    copy = tx.effects.dispatch(spec, effect.created_at, effect.worker or "")
    tx.effects.settle(
        effect_id,
        copy.attempt,
        effect.state,
        effect.finished_at or effect.created_at,
        effect.result,
        effect.error_code,
        effect.error_message,
    )


def _forked(tx: LedgerTx, *, session_id: str) -> Forked:
    session, fork = tx.sessions.get(session_id), tx.forks.get(session_id)
    if fork is None:
        raise InvalidInput(f"Session {session_id} is no fork.")
    restore = tx.workspaces.restore(session_id)
    return Forked(session, fork, None if restore is None else restore.target)


def lineage(tx: LedgerTx, session_id: str, number: int, after: int) -> list[int]:
    """Numbers, ascending, of the turns that were the conversation when turn `number` had ended.

    A rewind whose last turn is before this one had taken its turns out by then; a later one had not. Also for a turn
    that is superseded itself by now.
    """
    cuts: list[tuple[int, int]] = []
    last: str | None = None
    while page := tx.rewinds.of_session(session_id, before=last, limit=PAGE):
        cuts += [(rewind.to_number, rewind.last_number) for rewind in page if rewind.last_number < number]
        last = page[-1].rewind_id
    found: list[int] = []
    current = number
    while current > after:
        cut = min((to for to, end in cuts if to < current <= end), default=None)
        if cut is None:
            found.append(current)
            current -= 1
        else:
            current = cut
    return found[::-1]


def _next_numbers(tx: LedgerTx, fork: Fork) -> list[int]:
    return lineage(tx, fork.source_id, fork.to_number, fork.done_number)[:BATCH_TURNS]
