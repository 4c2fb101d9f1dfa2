"""Putting a backup back: into an empty data root and an empty database, after the whole file has been proven."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.reindexing import rebuild_search
from milepost.bootstrap.system import SystemClock
from milepost.config.loading import Config
from milepost.domain.errors import BackupUnusable, StorageUnavailable, TargetNotEmpty
from milepost.domain.turns import TurnState
from milepost.ports.ledger import Ledger, LedgerTx
from milepost.services.contents import Contents
from milepost.services.finishing import Ending, end_turn
from milepost.services.history import HistoryService
from milepost.services.memory_tasks import rebuild_memory
from milepost.services.verification import Verification, VerificationService
from milepost.storage import FileBlobStore, load_ledger, open_ledger, open_notifier, refuse_filled
from milepost.storage.archive import FIRST, LAST, Entry, entries
from milepost.storage.blob_form import PlainWriter

CONFIG_NAME = "restored-milepost.yaml"
"""Where the configuration goes: it is not put in force, since it may name the database the backup came from."""

_PAGE = 100
_WHY = "The turn was running when the backup was made from which this ledger was restored."


@dataclass(slots=True)
class Restored:
    """What was put back. `interrupted` turns were running when the backup was made."""

    instance_id: str
    created_at: int
    rows: dict[str, int]
    blobs: int
    workspaces: int
    damaged_blobs: list[str]
    config: str | None = None
    interrupted: int = 0
    verification: Verification | None = None
    opened: list[str] = field(default_factory=list)


async def restore(config: Config, root: DataRoot, path: Path, *, verify: bool) -> Restored:
    """Put the backup `path` back. The caller owns the data root. Nothing is left of a restore that fails.

    The file is read to its end before anything is written. Turns that were running end as interrupted: what they did
    after the backup is not known here, so nothing of them is done again.

    Raises:
        BackupUnusable, BackupTooNew, TargetNotEmpty, StorageUnavailable.
    """
    url = config.database_url()
    for folder in (root.blobs, root.snapshots, root.memory):
        if folder.exists() and any(folder.iterdir()):
            raise TargetNotEmpty(
                f"The folder {folder} is not empty.", fix="Restore into an empty data root: set MILEPOST_HOME."
            )
    await refuse_filled(url)
    first, last = await asyncio.to_thread(_prove, path)
    try:
        found = _found(last, first)
        found.config = await asyncio.to_thread(_files, path, root)
        await load_ledger(url, str(first["schema"]), lambda: _tables(path))
    except BaseException as error:
        for folder in (root.blobs, root.snapshots, root.memory):
            shutil.rmtree(folder, ignore_errors=True)
        (root.path / CONFIG_NAME).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StorageUnavailable(
                f"The data root {root.path} cannot be filled: {error.strerror or error}.",
                fix="Give this user a data root on a disk with enough space.",
            ) from error
        raise
    await rebuild_search(config, lambda _progress: None)
    await _wake(url, root, found, verify=verify)
    return found


def _prove(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last entry of a file that is whole."""
    ends: dict[str, dict[str, Any]] = {}
    for entry in entries(path):
        if entry.name in (FIRST, LAST):
            ends[entry.name] = entry.json()
    return ends[FIRST], ends[LAST]


def _found(last: dict[str, Any], first: dict[str, Any]) -> Restored:
    try:
        position = last["position"]
        return Restored(
            instance_id=str(position["instance_id"]),
            created_at=int(first["created_at"]),
            rows=dict(position["rows"]),
            blobs=int(last["blobs"]),
            workspaces=int(last["workspaces"]),
            damaged_blobs=list(last["damaged_blobs"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BackupUnusable("The backup does not tell what it has.") from error


def _files(path: Path, root: DataRoot) -> str | None:
    kept = None
    synced: set[Path] = set()
    for entry in entries(path):
        if entry.name.startswith("config/"):
            kept = root.path / CONFIG_NAME
            _write(entry, kept, synced)
        elif entry.name.startswith("blobs/"):
            _write(entry, root.path / entry.name, synced, PlainWriter)
        elif entry.name.startswith(("snapshots/", "memory/")):
            _write(entry, root.path / entry.name, synced)
    for folder in synced:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    if root.snapshots.is_dir():
        from milepost.snapshots.keeping import complete

        complete(root.snapshots)
    return None if kept is None else str(kept)


def _write(
    entry: Entry, path: Path, folders: set[Path], form: Callable[[BinaryIO, bytes], PlainWriter] | None = None
) -> None:
    for folder in reversed(path.parents):  # each private, which `parents=True` would not make them
        if not folder.exists():
            folder.mkdir(mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        writer = None
        for piece in entry.pieces():
            if form is not None and writer is None:
                writer = form(file, piece)
            (writer or file).write(piece)
        if writer is not None:
            writer.finish()
        file.flush()
        os.fsync(handle)
    folders.add(path.parent)


def _tables(path: Path) -> Iterator[Iterable[bytes]]:
    for entry in entries(path):
        if entry.name.startswith("tables/"):
            yield _lines(entry)


def _lines(entry: Entry) -> Iterator[bytes]:
    rest = b""
    for piece in entry.pieces():
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        yield from lines


async def _wake(url: str, root: DataRoot, found: Restored, *, verify: bool) -> None:
    notifier = await open_notifier(url)
    try:
        ledger = await open_ledger(url, notifier)
        try:
            found.interrupted = await _interrupt(ledger)
            if url.startswith("sqlite") or not found.rows.get("memory_entries"):
                # What the tables do not have is made from the events, by the first worker.
                await _rebuild_memory(ledger)
            if verify:
                contents = Contents(FileBlobStore(root.blobs))
                found.verification = await VerificationService(ledger, contents).verify()
                await _open_one(ledger, found)
        finally:
            await ledger.close()
    finally:
        await notifier.close()


async def _interrupt(ledger: Ledger) -> int:
    now = SystemClock().now()

    def body(tx: LedgerTx) -> int:
        turns = tx.turns.list_running(after=None, limit=_PAGE)
        for turn in turns:
            tx.turns.lock_session(turn.session_id)
            end_turn(tx, turn, Ending(TurnState.INTERRUPTED, _WHY), now)
        return len(turns)

    ended = 0
    while count := await ledger.write(body):
        ended += count
    return ended


async def _rebuild_memory(ledger: Ledger) -> None:
    now = SystemClock().now()
    last: str | None = None

    def body(tx: LedgerTx) -> str | None:
        sessions = tx.sessions.page(status=None, before=last, limit=_PAGE)
        for session in sessions:
            rebuild_memory(tx, session.session_id, now)
        return sessions[-1].session_id if sessions else None

    while (last := await ledger.write(body)) is not None:
        pass


async def _open_one(ledger: Ledger, found: Restored) -> None:
    """Read the newest Session as a person does."""
    sessions = await ledger.read(lambda tx: tx.sessions.page(status=None, before=None, limit=1))
    for session in sessions:
        await HistoryService(ledger).page(session.session_id)
        found.opened.append(session.session_id)
