"""A turn and the files of its Workspace: the lease, and snapshots around each call that may change them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from milepost.domain.effects import EffectClass
from milepost.domain.errors import MilepostError, SnapshotFailed, StorageUnavailable, TurnNotRunning, WorkspaceBusy
from milepost.domain.events import StreamKind, WorkspaceSnapshotted
from milepost.domain.sessions import Session, Workspace
from milepost.domain.tools import BUILTIN_TOOL_POLICIES, UNSANDBOXED_TOOLS
from milepost.domain.workspaces import LeasePurpose, WorkspaceLease
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.snapshots import Snapshots
from milepost.ports.system import Clock
from milepost.services.restores import RestoreService

LEASE_US = 60_000_000
RENEW_SECONDS = 15.0
WAIT_SECONDS = 1800.0
"""How long a call waits for the Workspace before it fails; the Workspace's holder may itself wait for a person."""
POLL_FIRST_SECONDS = 0.1
POLL_SECONDS = 1.0
WAIT_MARK_US = 5_000_000
MAX_GIVEN_UP = 1000

_READS = frozenset({EffectClass.PURE, EffectClass.OBSERVE})
_log = get_logger(__name__)


def can_write(tool: str) -> bool:
    """Whether a built-in tool may change files of the Workspace."""
    if tool in UNSANDBOXED_TOOLS:
        return False
    policy = BUILTIN_TOOL_POLICIES.get(tool)
    return policy is None or policy.effect_class not in _READS


@asynccontextmanager
async def leased(
    ledger: Ledger, clock: Clock, workspace: Workspace, holder: str, purpose: LeasePurpose, session_id: str
) -> AsyncIterator[WorkspaceLease]:
    """Hold a Workspace for an operation, renewing the lease until the block ends. Raises WorkspaceBusy."""

    async def take() -> WorkspaceLease:
        now = clock.now()
        return await ledger.write(
            lambda tx: tx.workspaces.acquire(workspace, holder, purpose, session_id, now, now + LEASE_US)
        )

    async def renew() -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(StorageUnavailable):
                await take()

    lease = await take()
    renewing = asyncio.ensure_future(renew())
    try:
        yield lease
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(StorageUnavailable):
            await asyncio.shield(ledger.write(lambda tx: tx.workspaces.release(holder)))


class WorkspaceGuard:
    """What the execution side does before and after a call in the Workspace, on the host that has it.

    A call that only reads needs files in their right state, nothing else. One that may write also needs the lease,
    which the turn keeps until it ends, and snapshots before and after; a snapshot that fails is recorded, and the call
    goes on. `owner` names this process.
    """

    def __init__(self, ledger: Ledger, clock: Clock, snapshots: Snapshots | None, owner: str) -> None:
        self._ledger = ledger
        self._clock = clock
        self._snapshots = snapshots
        self._restores = RestoreService(ledger, clock, snapshots)
        self._owner = owner
        self._given_up: dict[str, None] = {}

    async def enter(self, session: Session, turn_id: str, effect_id: str, *, writes: bool) -> None:
        """Before a call is dispatched.

        Raises:
            WorkspaceBusy: another turn or operation kept the Workspace for half an hour.
            SnapshotFailed: files wait to be restored and cannot be here.
            StorageUnavailable.
        """
        workspace_id = session.workspace.workspace_id
        pending = await self._restores.pending(workspace_id)
        if not writes and not pending:
            return
        await self._acquire(session, turn_id)
        for restore in await self._restores.pending(workspace_id):
            await self._restores.carry_out(restore)
        effect = await self._ledger.read(lambda tx: tx.effects.get(effect_id))
        if writes and (effect is None or effect.attempt == 0):
            # Else the call is at work: what it has done by now is not the state before it.
            await self._take(session, turn_id, effect_id, "before", 0)

    async def leave(self, session: Session, turn_id: str, effect_id: str, attempt: int) -> None:
        """After a call that may write has ended. Raises StorageUnavailable."""
        await self._take(session, turn_id, effect_id, "after", attempt)

    async def repair(self, workspace: Workspace) -> None:
        """Carry out what is pending for a Workspace. Raises WorkspaceBusy, SnapshotFailed, StorageUnavailable."""
        pending = await self._restores.pending(workspace.workspace_id)
        if not pending:
            return
        holder = f"repair/{self._owner}/{pending[0].restore_id}"
        session_id = pending[0].session_id
        async with leased(self._ledger, self._clock, workspace, holder, LeasePurpose.REPAIR, session_id):
            for restore in await self._restores.pending(workspace.workspace_id):
                await self._restores.carry_out(restore)

    async def repair_all(self) -> None:
        """Carry out what a killed process left, as far as it can be done now; for a loop. Raises StorageUnavailable."""
        for restore in await self._restores.pending():
            session = await self._ledger.read(lambda tx, wanted=restore: tx.sessions.get(wanted.session_id))  # type: ignore[misc]
            try:
                await self.repair(session.workspace)
            except (WorkspaceBusy, SnapshotFailed) as error:
                _log.warning("restore.waits", operation=restore.restore_id, error=error.code, detail=error.message)

    async def _acquire(self, session: Session, turn_id: str) -> None:
        deadline = self._clock.now() + int(WAIT_SECONDS * 1_000_000)
        pause = POLL_FIRST_SECONDS
        while True:
            try:
                await self._ledger.write(lambda tx: self._claim(tx, session, turn_id))
                return
            except WorkspaceBusy:
                if self._clock.now() > deadline:
                    await self._ledger.write(lambda tx: tx.workspaces.release(turn_id))
                    raise
                await self._ledger.write(lambda tx: self._show_waiting(tx, session, turn_id))
            await asyncio.sleep(pause)
            pause = min(pause * 2, POLL_SECONDS)

    def _claim(self, tx: LedgerTx, session: Session, turn_id: str) -> None:
        turn = tx.turns.get(turn_id)
        if turn.state.terminal:
            raise TurnNotRunning(f"Turn {turn_id} has ended ({turn.state}).")
        now = self._clock.now()
        waited = tx.workspaces.waits(turn_id, now)
        tx.workspaces.acquire(session.workspace, turn_id, LeasePurpose.TURN, session.session_id, now, None)
        if waited:
            tx.notify(session.session_id)

    def _show_waiting(self, tx: LedgerTx, session: Session, turn_id: str) -> None:
        now = self._clock.now()
        if not tx.workspaces.waits(turn_id, now):
            tx.notify(session.session_id)
        tx.workspaces.wait(turn_id, session.workspace.workspace_id, now + WAIT_MARK_US)

    async def _take(self, session: Session, turn_id: str, effect_id: str, moment: str, attempt: int) -> None:
        if self._snapshots is None or turn_id in self._given_up:
            return
        tree: str | None = None
        omitted: tuple[str, ...] = ()
        problem: str | None = None
        try:
            workspace = session.workspace
            taken = await self._snapshots.take(workspace.workspace_id, Path(workspace.path))
            tree, omitted = taken.tree, taken.omitted
        except MilepostError as error:
            problem = str(error)
            self._give_up(turn_id)
            _log.warning("snapshot.failed", turn_id=turn_id, error=error.code, detail=error.message)
        now = self._clock.now()
        event = WorkspaceSnapshotted(turn_id, effect_id, moment, tree, omitted=omitted, error=problem)
        with contextlib.suppress(TurnNotRunning):
            await self._ledger.write(lambda tx: self._record(tx, session, event, attempt, now))

    def _give_up(self, turn_id: str) -> None:
        """One failure is enough for a turn: each may take as long as the limit allows."""
        self._given_up[turn_id] = None
        while len(self._given_up) > MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]

    def _record(self, tx: LedgerTx, session: Session, event: WorkspaceSnapshotted, attempt: int, at: int) -> None:
        workspace_id = session.workspace.workspace_id
        if not tx.workspaces.held(workspace_id, event.turn_id):
            return  # the turn has ended, or lost its lease: its view is not the Workspace's any more
        if event.moment == "before":
            head = tx.workspaces.head(workspace_id)
            known = head is not None and head.turn_id == event.turn_id
            if known and head is not None and head.tree == event.tree:
                return
            if head is not None:
                event = replace(event, previous=head.tree, previous_turn=head.turn_id)
        if event.tree is not None:
            tx.workspaces.move_head(workspace_id, event.tree, event.turn_id)
        key = f"{event.effect_id}/snapshot/{event.moment}/{attempt}"
        tx.events.append(session.session_id, StreamKind.SESSION, [NewEvent(key, event, event.turn_id)], at)
        tx.notify(session.session_id)
