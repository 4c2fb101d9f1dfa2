"""Taking away blobs and states of Workspaces that the ledger does not mention, and checkpoints of no use.

What was put in place only lately is left alone: the ledger may be about to mention it. Putting the same bytes in place
again makes them new, under a lock that excludes taking them away, so nothing that is in use is ever lost.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from milepost.bootstrap.checkpoints import collect_checkpoints
from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.longterm import remove_expired_records
from milepost.config.loading import Config
from milepost.domain.errors import StorageUnavailable
from milepost.storage import referenced
from milepost.storage.blob_files import BlobFile, blob_files, leftovers, remove_blob

MAX_CANDIDATES = 200_000
"""Blobs, and states, that one collection looks at; a further one takes the rest."""


@dataclass(slots=True)
class Collected:
    """What was taken away, or would be. `complete` is False if there was more than one collection looks at.

    `expired` are records of long-term memory whose time is over.
    """

    blobs: int = 0
    bytes: int = 0
    states: int = 0
    checkpoints: int = 0
    leftovers: int = 0
    expired: int = 0
    complete: bool = True


async def collect(config: Config, root: DataRoot, *, grace_seconds: float, dry_run: bool) -> Collected:
    """Remove what nothing has mentioned and nobody has put in place for `grace_seconds`.

    Raises StorageUnavailable, SchemaOutdated, SchemaTooNew, SnapshotFailed.
    """
    url = config.database_url()
    before = time.time() - grace_seconds
    done = Collected()
    try:
        blobs, trees = await asyncio.to_thread(_candidates, root, before, done)
        used = await referenced(url, {*blobs, *trees})
        unused = [blob for digest, blob in blobs.items() if digest not in used]
        gone = {tree: repositories for tree, repositories in trees.items() if tree not in used}
        await asyncio.to_thread(_remove_blobs, root.blobs, unused, before, done, dry_run)
        await asyncio.to_thread(_forget_states, gone, before, done, dry_run)
        await asyncio.to_thread(_remove_leftovers, root, before, done, dry_run)
        done.checkpoints, left = await collect_checkpoints(config, root, before, dry_run=dry_run)
        done.leftovers += left
        done.expired = await remove_expired_records(config, root, dry_run=dry_run)
    except OSError as error:
        raise StorageUnavailable(
            f"The data root {root.path} cannot be cleaned: {error.strerror or error}.",
            fix="Check that it belongs to this user, then repeat.",
        ) from error
    return done


def _candidates(root: DataRoot, before: float, done: Collected) -> tuple[dict[str, BlobFile], dict[str, list[Path]]]:
    blobs: dict[str, BlobFile] = {}
    for blob in blob_files(root.blobs):
        if len(blobs) >= MAX_CANDIDATES:
            done.complete = False
            break
        if blob.at < before:
            blobs[blob.digest] = blob
    trees: dict[str, list[Path]] = {}
    if root.snapshots.is_dir():
        from milepost.snapshots.keeping import states

        for state in states(root.snapshots):
            if len(trees) >= MAX_CANDIDATES:
                done.complete = False
                break
            if state.at < before:
                trees.setdefault(state.tree, []).append(state.repository)
    return blobs, trees


def _remove_blobs(folder: Path, blobs: Iterable[BlobFile], before: float, done: Collected, dry_run: bool) -> None:
    for blob in blobs:
        if dry_run or remove_blob(folder, blob, before):
            done.blobs += 1
            done.bytes += blob.size


def _forget_states(gone: dict[str, list[Path]], before: float, done: Collected, dry_run: bool) -> None:
    if dry_run:
        done.states = sum(map(len, gone.values()))
        return
    by_repository: dict[Path, set[str]] = {}
    for tree, repositories in gone.items():
        for repository in repositories:
            by_repository.setdefault(repository, set()).add(tree)
    if by_repository:
        from milepost.snapshots.keeping import forget

        for repository, trees in by_repository.items():
            done.states += forget(repository, trees, before)


def _remove_leftovers(root: DataRoot, before: float, done: Collected, dry_run: bool) -> None:
    found = list(leftovers(root.blobs, before))
    if root.snapshots.is_dir():
        from milepost.snapshots.keeping import leftovers as copies

        found += copies(root.snapshots, before)
    done.leftovers = len(found)
    for path in () if dry_run else found:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
