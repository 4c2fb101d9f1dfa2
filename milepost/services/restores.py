"""Carrying out file operations that the ledger has recorded: after a rewind, and into the folder of a fork.

They are recorded before a file is touched, so a process that is killed in between leaves a pending one. It is carried
out before anything else touches the Workspace, and doing it twice changes nothing the second time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from milepost.domain.errors import MilepostError, SnapshotFailed, WorkspaceChanged
from milepost.domain.events import StreamKind, WorkspaceRestored
from milepost.domain.sessions import Session
from milepost.domain.workspaces import Restore, RestoreKind, RestoreState
from milepost.observability.logging import get_logger
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.snapshots import Entry, FileChange, Snapshots
from milepost.ports.system import Clock

TRIES = 3
MAX_NAMED = 100
MAX_COMPARED = 64 * 1024 * 1024

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Done:
    archived: str | None
    tree: str
    changed: int
    kept: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class RestoreService:
    """`carry_out` needs the Workspace's lease, which its caller has."""

    def __init__(self, ledger: Ledger, clock: Clock, snapshots: Snapshots | None) -> None:
        self._ledger = ledger
        self._clock = clock
        self._snapshots = snapshots

    async def pending(self, workspace_id: str | None = None) -> list[Restore]:
        """What is still to be done, oldest first. Raises StorageUnavailable."""
        return await self._ledger.read(lambda tx: tx.workspaces.restores(workspace_id))

    async def carry_out(self, restore: Restore) -> WorkspaceRestored:
        """Do it and record how it went; what cannot be done is recorded as failed and not tried again.

        Raises:
            SnapshotFailed: no snapshots can be made here now; it stays pending.
            StorageUnavailable.
        """
        session = await self._ledger.read(lambda tx: tx.sessions.get(restore.session_id))
        if self._snapshots is None:
            raise SnapshotFailed("Snapshots are off, so files that are to be restored cannot be.", fix="Turn them on.")
        await self._snapshots.check()
        try:
            if restore.kind is RestoreKind.REWIND:
                done = await self._put_back(self._snapshots, session, restore)
            else:
                done = await self._write(self._snapshots, session, restore)
        except MilepostError as error:
            event = WorkspaceRestored(restore.restore_id, restore.present, restore.target, 0, error=str(error))
            return await self._end(session, restore, RestoreState.FAILED, event, str(error))
        event = WorkspaceRestored(
            restore.restore_id, done.archived, done.tree, done.changed, done.kept[:MAX_NAMED], done.failed[:MAX_NAMED]
        )
        return await self._end(session, restore, RestoreState.DONE, event, None)

    async def _put_back(self, snapshots: Snapshots, session: Session, restore: Restore) -> _Done:
        workspace_id, folder = session.workspace.workspace_id, Path(session.workspace.path)
        wanted = await snapshots.changes(workspace_id, restore.present or "", restore.target)
        for remaining in reversed(range(TRIES)):
            found = (await snapshots.take(workspace_id, folder)).tree
            now = await snapshots.entries(workspace_id, found, [change.path for change in wanted])
            entries: dict[str, Entry | None] = {}
            kept: list[str] = []
            for change in wanted:
                if now[change.path] == change.after:
                    continue
                if await self._ours(snapshots, workspace_id, change, now[change.path]):
                    entries[change.path] = change.after
                else:
                    kept.append(change.path)
            target = await snapshots.compose(workspace_id, found, entries)
            try:
                done = await snapshots.restore(workspace_id, folder, found, target)
            except WorkspaceChanged:
                if not remaining:
                    raise
                continue
            after = (await snapshots.take(workspace_id, folder)).tree
            failed = tuple(f"{path}: {why}" for path, why in done.failed)
            return _Done(found, after, done.changed, tuple(kept), failed)
        raise AssertionError("unreachable")

    async def _ours(self, snapshots: Snapshots, workspace_id: str, change: FileChange, now: Entry | None) -> bool:
        """Whether a file may be replaced: it is as it was, gone, or what a killed restore had written of it so far."""
        if now is None or now == change.before:
            return True
        if change.after is None:
            return False
        part = await snapshots.content(workspace_id, now.content, MAX_COMPARED)
        whole = await snapshots.content(workspace_id, change.after.content, MAX_COMPARED)
        return part is not None and whole is not None and len(part) < len(whole) and whole.startswith(part)

    async def _write(self, snapshots: Snapshots, session: Session, restore: Restore) -> _Done:
        workspace_id, folder = session.workspace.workspace_id, Path(session.workspace.path)
        if await asyncio.to_thread(_has_files, folder):
            found = (await snapshots.take(workspace_id, folder)).tree
            if found != restore.target:
                raise WorkspaceChanged(f"The folder {folder} is not empty any more; nothing was written into it.")
            return _Done(None, found, 0)
        files = await snapshots.export(restore.source_id, restore.target, folder)
        return _Done(None, (await snapshots.take(workspace_id, folder)).tree, files)

    async def _end(
        self, session: Session, restore: Restore, state: RestoreState, event: WorkspaceRestored, error: str | None
    ) -> WorkspaceRestored:
        now = self._clock.now()

        def body(tx: LedgerTx) -> None:
            if not tx.workspaces.end_restore(restore.restore_id, state, now, error):
                return
            if state is RestoreState.DONE:
                tx.workspaces.move_head(session.workspace.workspace_id, event.tree, None)
            new = NewEvent(f"{restore.restore_id}/restored", event)
            tx.events.append(session.session_id, StreamKind.SESSION, [new], now)
            tx.notify(session.session_id)

        await self._ledger.write(body)
        _log.info("workspace.restored", operation=restore.restore_id, state=state, changed=event.changed)
        return event


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())
