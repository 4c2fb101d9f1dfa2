"""Rewind: turns behind a point stop counting, in one transaction. Nothing is deleted and nothing is started.

With files, those that the turns changed are restored afterwards: the transaction also records what is to be done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from milepost.domain.effects import EffectClass, EffectState
from milepost.domain.errors import InvalidInput, SnapshotFailed, TurnSuperseded, WorkspaceBusy, WorkspaceChanged
from milepost.domain.events import SessionRewound, StreamKind, WorkspaceRestored
from milepost.domain.rewinds import Rewind
from milepost.domain.sessions import Session
from milepost.domain.tools import SANDBOXED_OPERATIONS, SHELL, SHELL_TOOLS
from milepost.domain.turns import Turn
from milepost.domain.workspaces import LeasePurpose, Restore, RestoreKind, RestoreState, workspace_busy
from milepost.ports.ledger import EffectCount, Ledger, LedgerTx, NewEvent
from milepost.ports.snapshots import Snapshots
from milepost.ports.system import Clock, IdSource
from milepost.services.restores import RestoreService
from milepost.services.rewinding import FilesPlan, plan_files
from milepost.services.sessions import MAX_PAGE, require_active
from milepost.services.turns import turn_running
from milepost.services.workspaces import leased

SHOWN_TURNS = 100

_HARMLESS = frozenset({EffectClass.PURE, EffectClass.OBSERVE, EffectClass.MODEL, EffectClass.INTERNAL_STATE})
_NOT_RUN = frozenset({EffectState.PLANNED, EffectState.AWAITING_APPROVAL, EffectState.DENIED})


@dataclass(frozen=True, slots=True)
class RewindTo:
    """The last turn that shall count, by number (0: none) or by id.

    `files`: also restore the files that the later turns changed, except those that somebody else changed since; with
    `overwrite` those too.
    """

    session_id: str
    actor: str
    number: int | None = None
    turn_id: str | None = None
    reason: str | None = None
    files: bool = False
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What a rewind supersedes, and what it does not undo.

    `turns` are the newest 100 of `count`. `workspace` are calls that may have changed files, `outside` those that may
    have had an effect anywhere else.
    """

    session_id: str
    to_number: int
    last_number: int
    count: int
    turns: tuple[Turn, ...]
    workspace: tuple[EffectCount, ...]
    outside: tuple[EffectCount, ...]
    files: FilesPlan | None = None


@dataclass(frozen=True, slots=True)
class RewindResult:
    """`rewind` is None when there was nothing behind the point. `restored` tells what happened to files.

    It is None with a `rewind` that was to restore files if that is still to be done: it is, before the next call.
    """

    plan: RewindPlan
    rewind: Rewind | None
    restored: WorkspaceRestored | None = None


class RewindService:
    """`networked` tells whether commands in the sandbox can reach more than the Workspace."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        ids: IdSource,
        snapshots: Snapshots | None = None,
        *,
        networked: bool = False,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._ids = ids
        self._snapshots = snapshots
        self._restores = RestoreService(ledger, clock, snapshots)
        self._networked = networked

    async def plan(self, to: RewindTo) -> RewindPlan:
        """What `rewind` would do now; the same refusals, no change but a snapshot of the present state with `files`.

        Raises what `rewind` does.
        """
        plan, session = await self._ledger.read(lambda tx: (self._plan(tx, to), tx.sessions.get(to.session_id)))
        if not to.files:
            return plan
        now = self._clock.now()
        busy = await self._ledger.read(lambda tx: tx.workspaces.holder(session.workspace, now))
        if busy is not None:
            raise workspace_busy(busy, session.workspace)
        return replace(plan, files=await self._plan_files(to, session, plan))

    async def rewind(self, to: RewindTo) -> RewindResult:
        """Supersede the turns behind the point and append `session.rewound`; doing it again changes nothing.

        Raises:
            SessionNotFound, SessionClosed, TurnNotFound, TurnSuperseded (the point is no part of the conversation),
            TurnRunning, InvalidInput.
            WorkspaceBusy, WorkspaceChanged, SnapshotFailed, SnapshotNotFound: with files; nothing was changed then.
        """
        rewind_id = self._ids.new("rwd")
        if not to.files:
            return await self._ledger.write(lambda tx: self._rewind(tx, to, rewind_id, None))
        session = await self._ledger.read(lambda tx: tx.sessions.get(to.session_id))
        holding = leased(
            self._ledger, self._clock, session.workspace, rewind_id, LeasePurpose.REWIND, session.session_id
        )
        async with holding as lease:
            for left in await self._restores.pending(session.workspace.workspace_id):
                await self._restores.carry_out(left)
            plan = await self._ledger.read(lambda tx: self._plan(tx, to))
            files = await self._plan_files(to, session, plan)

            def body(tx: LedgerTx) -> RewindResult:
                if not tx.workspaces.held(session.workspace.workspace_id, rewind_id, lease.fence):
                    raise WorkspaceBusy("The rewind took too long and lost the Workspace; nothing was changed.")
                return self._rewind(tx, to, rewind_id, (session, plan, files))

            done = await self._ledger.write(body)
            restore = await self._ledger.read(lambda tx: tx.workspaces.restore(rewind_id))
            if done.rewind is None or restore is None:
                return done
            try:
                return replace(done, restored=await self._restores.carry_out(restore))
            except SnapshotFailed:
                return done

    async def _plan_files(self, to: RewindTo, session: Session, plan: RewindPlan) -> FilesPlan:
        if self._snapshots is None:
            raise SnapshotFailed(
                "Snapshots are off, so no files can be restored.",
                fix="Set snapshots.enabled to true; with sandbox.backend e2b there are none.",
            )
        return await plan_files(self._ledger, self._snapshots, session, plan.to_number, overwrite=to.overwrite)

    def _rewind(
        self, tx: LedgerTx, to: RewindTo, rewind_id: str, with_files: tuple[Session, RewindPlan, FilesPlan] | None
    ) -> RewindResult:
        now = self._clock.now()
        tx.turns.lock_session(to.session_id)
        plan = self._plan(tx, to)
        if with_files is not None:
            session, expected, files = with_files
            if (plan.count, plan.last_number) != (expected.count, expected.last_number):
                raise WorkspaceChanged("The Session went on while it was to be rewound; nothing was changed.")
            plan = replace(plan, files=files)
        if not plan.count:
            return RewindResult(plan, None)
        tx.turns.supersede(to.session_id, after_number=plan.to_number)
        rewind = Rewind(
            rewind_id, to.session_id, plan.to_number, plan.last_number, plan.count, to.actor, to.reason, now
        )
        tx.rewinds.add(rewind)
        if with_files is not None:
            workspace = session.workspace.workspace_id
            restore = Restore(
                restore_id=rewind_id,
                kind=RestoreKind.REWIND,
                session_id=to.session_id,
                workspace_id=workspace,
                source_id=workspace,
                present=files.present,
                target=files.target,
                state=RestoreState.PENDING,
                created_at=now,
            )
            tx.workspaces.add_restore(restore)
        event = SessionRewound(
            rewind_id, plan.to_number, plan.last_number, plan.count, to.actor, to.reason, with_files is not None
        )
        tx.events.append(to.session_id, StreamKind.SESSION, [NewEvent(f"{rewind_id}/rewound", event)], now)
        tx.notify(to.session_id)
        return RewindResult(plan, rewind)

    async def page(self, session_id: str, *, before: str | None = None, limit: int = 50) -> list[Rewind]:
        """A Session's rewinds, newest first. Raises SessionNotFound, InvalidInput (for `before`)."""

        def body(tx: LedgerTx) -> list[Rewind]:
            tx.sessions.get(session_id)
            if before is not None and tx.rewinds.get(before) is None:
                raise InvalidInput("The cursor is of no page.", field="cursor", fix="Begin without a cursor.")
            return tx.rewinds.of_session(session_id, before=before, limit=max(1, min(limit, MAX_PAGE)))

        return await self._ledger.read(body)

    def _plan(self, tx: LedgerTx, to: RewindTo) -> RewindPlan:
        require_active(tx.sessions.get(to.session_id))
        number = _point(tx, to)
        running = tx.turns.running(to.session_id)
        if running is not None:
            raise turn_running(running)
        count, last = tx.turns.live(to.session_id, after_number=number)
        shown = tx.turns.page(to.session_id, before_number=None, limit=SHOWN_TURNS) if count else []
        tally = [item for item in tx.effects.tally(to.session_id, after_number=number) if _counts(item)]
        return RewindPlan(
            session_id=to.session_id,
            to_number=number,
            last_number=last,
            count=count,
            turns=tuple(turn for turn in shown if turn.number > number and not turn.superseded),
            workspace=tuple(item for item in tally if item.operation in SANDBOXED_OPERATIONS),
            outside=tuple(item for item in tally if self._outside(item)),
        )

    def _outside(self, item: EffectCount) -> bool:
        if item.operation not in SANDBOXED_OPERATIONS:
            return True
        return self._networked and item.operation in _SHELLS


_SHELLS = frozenset(f"tool:{name}" for name in (SHELL, *SHELL_TOOLS))
"""Operations that reach the network, where the sandbox has one."""


def _point(tx: LedgerTx, to: RewindTo) -> int:
    if (to.number is None) == (to.turn_id is None):
        raise InvalidInput("Name the point by a turn's number or by its id.", field="to_number")
    if to.number == 0:
        return 0
    if to.number is not None and to.number < 0:
        raise InvalidInput("A turn's number is 1 or more; 0 is before the first turn.", field="to_number")
    turn = tx.turns.get(to.turn_id) if to.turn_id is not None else tx.turns.numbered(to.session_id, to.number or 0)
    if turn.session_id != to.session_id:
        raise InvalidInput(f"Turn {turn.turn_id} belongs to another Session.", field="to_turn")
    if turn.superseded:
        raise TurnSuperseded(
            f"Turn {turn.number} was superseded by a rewind; it is no part of the conversation any more.",
            fix="Name a turn that counts, or fork the Session from this one.",
        )
    return turn.number


def _counts(item: EffectCount) -> bool:
    return item.effect_class not in _HARMLESS and item.state not in _NOT_RUN
