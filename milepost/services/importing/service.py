"""Importing a Session: check everything, keep its blobs, then write all of it in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from milepost.domain.errors import InvalidInput
from milepost.domain.events import StreamKind
from milepost.domain.sessions import Session, Workspace
from milepost.domain.turns import TurnState
from milepost.engine.budgets import session_scope
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.system import Clock, IdSource
from milepost.services.contents import Contents
from milepost.services.finishing import Ending, end_turn
from milepost.services.importing import conversation, lossless, transcript
from milepost.services.importing.document import Document, is_export
from milepost.services.importing.plan import INTERRUPTED, Plan
from milepost.services.memory_tasks import rebuild_memory
from milepost.services.sessions import workspace_folder

BATCH_EVENTS = 100


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """`workspace` is the folder the Session shall work on; without it the one it had, if this instance knows that."""

    workspace: str | None = None
    title: str | None = None


AS_IT_WAS = ImportOptions()


@dataclass(frozen=True, slots=True)
class Imported:
    """`created` is False if the file had been imported before; nothing was changed then."""

    session_id: str
    created: bool
    format: str
    turns: int
    interrupted: int
    missing_blobs: int


class ImportService:
    """Imports Sessions. What it writes is past: nothing is dispatched, and no turn runs."""

    def __init__(
        self, ledger: Ledger, contents: Contents, clock: Clock, ids: IdSource, data_root: Path | None = None
    ) -> None:
        self._ledger = ledger
        self._contents = contents
        self._clock = clock
        self._ids = ids
        self._data_root = data_root

    @property
    def spool(self) -> Path | None:
        """A folder for the file while it comes in; None for the system's."""
        return self._data_root

    async def load(self, file: BinaryIO, options: ImportOptions = AS_IT_WAS) -> Imported:
        """Import the lossless export or the transcript that lies in a file, once.

        Raises:
            BadLine: (an InvalidInput) the file, with line and reason; nothing was imported.
            InvalidInput: the workspace.
            StorageUnavailable.
        """
        exported = await asyncio.to_thread(is_export, file)
        if exported:
            document = await asyncio.to_thread(Document, file)
            plan = await asyncio.to_thread(lossless.plan_of, document, self._ledger.instance_id)
        else:
            parsed = await asyncio.to_thread(transcript.parse, file)
            plan = await conversation.plan_of(parsed, self._contents, self._ledger.instance_id, self._clock.now())
        known = await self._ledger.read(lambda tx: tx.sessions.exists(plan.session.session_id))
        if known:
            return _result(plan, created=False)
        path = await self._workspace(plan.session.workspace.path, options.workspace)
        if exported:
            await self._keep_blobs(document)
        return _result(plan, created=await self._write(plan, path, options.title))

    async def _workspace(self, recorded: str, wanted: str | None) -> str:
        if wanted is not None:
            return await asyncio.to_thread(workspace_folder, wanted, self._data_root)
        # A file must not choose a folder of this machine that no person ever chose here.
        known = bool(recorded) and await self._ledger.read(lambda tx: tx.sessions.has_workspace(recorded))
        if known:
            return recorded
        raise InvalidInput(
            "The Session needs a folder of this machine.",
            field="workspace",
            fix="Name one: milepost import FILE --workspace DIR",
        )

    async def _keep_blobs(self, document: Document) -> None:
        pieces = lossless.BlobPieces(document)
        while (media_type := await asyncio.to_thread(pieces.next_blob)) is not None:
            await self._contents.store_bytes(_in_threads(pieces), media_type)

    async def _write(self, plan: Plan, path: str, title: str | None) -> bool:
        now = self._clock.now()
        workspace = Workspace(self._ids.new("wsp"), path, now)

        def body(tx: LedgerTx) -> bool:
            session_id = plan.session.session_id
            if tx.sessions.exists(session_id):
                return False
            for batch in _batches(plan.source.events()):
                tx.events.append(session_id, StreamKind.SESSION, batch, now)
            tx.sessions.add(_session(plan.session, tx.sessions.workspace(path, workspace), title))
            for turn in plan.source.turns():
                tx.turns.restore(turn)
            _restore_spending(tx, plan, now)
            for effect in plan.source.effects():
                tx.effects.restore(effect)
            for approval in plan.source.approvals():
                tx.approvals.add(approval)
            for rewind in plan.source.rewinds():
                tx.rewinds.add(rewind)
            for attachment, text in plan.source.attachments():
                tx.attachments.add(attachment, text)
            running = tx.turns.running(session_id)
            if running is not None:
                end_turn(tx, running, Ending(TurnState.INTERRUPTED, INTERRUPTED), now)
            # What had been imported before it was exported has the events of those imports.
            completed = NewEvent(f"import.completed/{plan.completed.digest}", plan.completed)
            tx.events.append(session_id, StreamKind.SESSION, [completed], now)
            rebuild_memory(tx, session_id, now)
            return True

        return await self._ledger.write(body)


def _restore_spending(tx: LedgerTx, plan: Plan, now: int) -> None:
    """What it had used is used; what it may use is as it was."""
    scope = session_scope(plan.session.session_id)
    tx.budgets.lock([scope], now)
    tx.budgets.save({scope: plan.spending}, now)
    if plan.limits.any:
        tx.budgets.set_limits(plan.session.session_id, plan.limits)


def _session(session: Session, workspace: Workspace, title: str | None) -> Session:
    return replace(session, workspace=workspace, title=title or session.title)


def _batches(events: Iterator[NewEvent]) -> Iterator[list[NewEvent]]:
    batch: list[NewEvent] = []
    for event in events:
        batch.append(event)
        if len(batch) == BATCH_EVENTS:
            yield batch
            batch = []
    if batch:
        yield batch


async def _in_threads(pieces: lossless.BlobPieces) -> AsyncGenerator[bytes, None]:
    while (piece := await asyncio.to_thread(pieces.next_piece)) is not None:
        yield piece


def _result(plan: Plan, *, created: bool) -> Imported:
    done = plan.completed
    return Imported(plan.session.session_id, created, done.format, done.turns, done.interrupted, plan.missing_blobs)
