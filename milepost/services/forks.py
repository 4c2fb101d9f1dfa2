"""Fork: a new Session with a copy of another one's turns up to a point. The source is only read.

The new Session is recorded first, closed; its files are written, then turns are copied, then it is active. A fork that
a kill interrupted is carried on from where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from milepost.domain.errors import InvalidInput, SnapshotFailed, TurnRunning
from milepost.domain.events import SessionOpened, StreamKind
from milepost.domain.forks import Fork, ForkState
from milepost.domain.sessions import Session, SessionStatus, Workspace
from milepost.domain.workspaces import LeasePurpose, Restore, RestoreKind, RestoreState
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.snapshots import Snapshots
from milepost.ports.system import Clock, IdSource
from milepost.services.changes import traces
from milepost.services.copying import copy_selection
from milepost.services.forking import PAGE, ForkCopier, Forked, lineage
from milepost.services.sessions import session_title
from milepost.services.workspaces import leased

MAX_TURNS = 2_000
"""The newest turns that a fork copies; a model gets 500 at most."""

CheckFolder = Callable[[str], str]
"""The resolved path of a folder that a Session may work on. Raises InvalidInput."""


@dataclass(frozen=True, slots=True)
class ForkFrom:
    """The last turn to copy, by number (0: none) or id; neither: the last one that counts.

    Without `workspace` the fork works on the same folder. `files`: `workspace` is a new folder, which gets the files as
    they were at that point.
    """

    session_id: str
    actor: str
    number: int | None = None
    turn_id: str | None = None
    title: str | None = None
    workspace: str | None = None
    files: bool = False


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """What a fork copies: turns of the source by number, ascending. `tree` is the state of files, None if not recorded.

    Without a recorded state of that point, files are taken as they are now.
    """

    source: Session
    to_number: int
    numbers: tuple[int, ...]
    omitted: int
    tree: str | None


class ForkService:
    """Use cases of forks."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        ids: IdSource,
        snapshots: Snapshots | None,
        check_folder: CheckFolder,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._ids = ids
        self._snapshots = snapshots
        self._check_folder = check_folder
        self._copier = ForkCopier(ledger, clock, snapshots)

    async def plan(self, request: ForkFrom) -> ForkPlan:
        """What `fork` would copy now; the same refusals, no change."""
        self._check(request)
        plan = await self._ledger.read(lambda tx: _plan(tx, request))
        if request.files and request.workspace is not None:
            _free_folder(Path(request.workspace), make=False)
        return plan

    async def fork(self, request: ForkFrom) -> Forked:
        """Make the Session and copy. What cannot be finished now is carried on later; the fork's state tells.

        Raises:
            SessionNotFound, TurnNotFound, TurnRunning (the point has not ended), InvalidInput,
            SnapshotFailed, SnapshotNotFound, WorkspaceBusy: with files; nothing was made then.
        """
        plan = await self.plan(request)
        session_id = self._ids.new("ses")
        tree = await self._tree(plan, session_id) if request.files else None
        path = plan.source.workspace.path if request.workspace is None else self._folder(request)
        await self._ledger.write(lambda tx: self._open(tx, request, plan, session_id, path, tree))
        return await self._copier.carry_on(session_id)

    def _check(self, request: ForkFrom) -> None:
        if request.number is not None and request.turn_id is not None:
            raise InvalidInput("Name the point by a turn's number or by its id, not both.", field="to_number")
        if request.files and request.workspace is None:
            raise InvalidInput(
                "Files go into a new folder.", field="workspace", fix="Name a folder that does not exist or is empty."
            )
        if request.files and self._snapshots is None:
            raise SnapshotFailed(
                "Snapshots are off, so there are no files to fork.",
                fix="Set snapshots.enabled to true; with sandbox.backend e2b there are none.",
            )
        if request.workspace is not None and not request.files:
            self._check_folder(request.workspace)

    def _folder(self, request: ForkFrom) -> str:
        folder = Path(request.workspace or "")
        made = request.files and not folder.exists()
        if request.files:
            _free_folder(folder, make=True)
        try:
            return self._check_folder(str(folder))
        except InvalidInput:
            if made:
                folder.rmdir()
            raise

    async def _tree(self, plan: ForkPlan, session_id: str) -> str:
        assert self._snapshots is not None  # noqa: S101 - checked before
        workspace = plan.source.workspace
        if plan.tree is not None:
            await self._snapshots.changes(workspace.workspace_id, plan.tree, plan.tree)
            return plan.tree
        source = plan.source.session_id
        async with leased(self._ledger, self._clock, workspace, session_id, LeasePurpose.FORK, source):
            return (await self._snapshots.take(workspace.workspace_id, Path(workspace.path))).tree

    def _open(
        self, tx: LedgerTx, request: ForkFrom, plan: ForkPlan, session_id: str, path: str, tree: str | None
    ) -> None:
        now = self._clock.now()
        source = plan.source
        workspace = tx.sessions.workspace(path, Workspace(self._ids.new("wsp"), path, now))
        title = session_title(request.title or f"{source.title} (fork)")
        session = replace(
            source,
            session_id=session_id,
            workspace=workspace,
            title=title,
            status=SessionStatus.CLOSED,
            created_at=now,
            closed_at=now,
        )
        tx.sessions.add(session)
        limits = tx.budgets.limits(source.session_id)
        tx.budgets.set_limits(session_id, limits)
        opened = SessionOpened(path, title, source.mode, source.agents, limits, source.skills)
        tx.events.append(session_id, StreamKind.SESSION, [NewEvent("session.opened", opened)], now)
        fork = Fork(
            session_id=session_id,
            source_id=source.session_id,
            to_number=plan.to_number,
            done_number=plan.numbers[0] - 1 if plan.numbers else plan.to_number,
            copied=0,
            omitted=plan.omitted,
            files=tree is not None,
            state=ForkState.COPYING,
            actor=request.actor,
            created_at=now,
        )
        tx.forks.add(fork)
        copy_selection(tx, source.session_id, session_id)
        if tree is not None:
            restore = Restore(
                restore_id=session_id,
                kind=RestoreKind.FORK,
                session_id=session_id,
                workspace_id=workspace.workspace_id,
                source_id=source.workspace.workspace_id,
                present=None,
                target=tree,
                state=RestoreState.PENDING,
                created_at=now,
            )
            tx.workspaces.add_restore(restore)
        tx.notify(session_id)


def _plan(tx: LedgerTx, request: ForkFrom) -> ForkPlan:
    source = tx.sessions.get(request.session_id)
    number = _point(tx, request)
    numbers = lineage(tx, source.session_id, number, 0)
    kept = numbers[-MAX_TURNS:]
    return ForkPlan(
        source, number, tuple(kept), len(numbers) - len(kept), _tree_at(tx, source.session_id, kept, number)
    )


def _point(tx: LedgerTx, request: ForkFrom) -> int:
    session_id = request.session_id
    if request.turn_id is not None:
        turn = tx.turns.get(request.turn_id)
        if turn.session_id != session_id:
            raise InvalidInput(f"Turn {turn.turn_id} belongs to another Session.", field="to_turn")
    elif request.number is not None:
        if request.number == 0:
            return 0
        turn = tx.turns.numbered(session_id, request.number)
    else:
        before: int | None = None
        while page := tx.turns.page(session_id, before_number=before, limit=PAGE):
            for turn in page:
                if turn.state.terminal and not turn.superseded:
                    return turn.number
            before = page[-1].number
        return 0
    if not turn.state.terminal:
        raise TurnRunning(
            f"Turn {turn.turn_id} is still running; a fork has whole turns.",
            turn_id=turn.turn_id,
            fix="Wait for it, stop it, or name an earlier turn.",
        )
    return turn.number


def _tree_at(tx: LedgerTx, session_id: str, numbers: list[int], to_number: int) -> str | None:
    """The last state recorded in these turns, else the first one recorded after them."""
    for start in range(len(numbers), 0, -PAGE):
        chosen = [tx.turns.numbered(session_id, number).turn_id for number in numbers[max(0, start - PAGE) : start]]
        by_id = traces(tx, session_id, chosen)
        for turn_id in reversed(chosen):
            if by_id[turn_id].end is not None:
                return by_id[turn_id].end
    _, last = tx.turns.live(session_id, after_number=to_number)
    for number in range(to_number + 1, min(last, to_number + PAGE) + 1):
        turn = tx.turns.numbered(session_id, number)
        start_tree = traces(tx, session_id, [turn.turn_id])[turn.turn_id].start
        if start_tree is not None:
            return start_tree
    return None


def _free_folder(folder: Path, *, make: bool) -> None:
    """Raise InvalidInput unless the folder is empty, or can be made in one that is there."""
    try:
        if folder.is_dir() and not folder.is_symlink():
            if any(folder.iterdir()):
                raise InvalidInput(f"The folder {folder} is not empty.", field="workspace", fix="Name another one.")
        elif folder.exists() or folder.is_symlink():
            raise InvalidInput(f"{folder} exists and is no folder.", field="workspace", fix="Name another one.")
        elif not folder.parent.is_dir():
            raise InvalidInput(f"There is no folder {folder.parent}.", field="workspace", fix="Make it first.")
        elif make:
            folder.mkdir()
    except OSError as error:
        raise InvalidInput(f"{folder}: {error.strerror or error}.", field="workspace") from error
