"""Writing a backup: ledger, blobs, snapshots and configuration of a working instance in one file.

The ledger is read first, within one snapshot of the database. Blobs and states of Workspaces are stored before the
ledger mentions them and never changed, so those that are copied afterwards are all that it mentions, and perhaps more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.system import SystemClock, release
from milepost.config.loading import Config
from milepost.domain.errors import StorageUnavailable, TargetNotEmpty
from milepost.storage import dump_ledger
from milepost.storage.archive import FIRST, FORMAT, ArchiveWriter, writing
from milepost.storage.blob_files import BlobFile, blob_files
from milepost.storage.portable import Position
from milepost.storage.schema import REVISIONS

SHARED_BLOCKS = "core/shared/v1"


@dataclass(slots=True)
class Backup:
    """What was written. `damaged` are blobs that were left out, since their bytes are not what their name says."""

    path: str
    bytes: int = 0
    instance_id: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    blobs: int = 0
    damaged: list[str] = field(default_factory=list)
    workspaces: int = 0
    config: bool = False


async def back_up(config: Config, root: DataRoot, path: Path) -> Backup:
    """Write a backup into the new file `path`, which others cannot read; nothing is left of one that fails.

    Raises:
        TargetNotEmpty: the file exists.
        StorageUnavailable, SchemaOutdated, SchemaTooNew, SnapshotFailed.
    """
    url = config.database_url()
    await asyncio.to_thread(config.learn_secrets)
    done = Backup(str(path))
    now = SystemClock().now()
    try:
        with writing(path, now) as archive:
            archive.add_json(
                FIRST, {"format": FORMAT, "release": release(), "schema": REVISIONS[-1], "created_at": now}
            )
            position = await dump_ledger(url, lambda name, data: archive.add(f"tables/{name}", data))
            await asyncio.to_thread(_files, archive, config, root, done)
            _finish(archive, position, done)
        done.bytes = (await asyncio.to_thread(path.stat)).st_size
    except FileExistsError as error:
        raise TargetNotEmpty(f"The file {path} exists already.", fix="Name a new file.") from error
    except OSError as error:
        raise StorageUnavailable(
            f"The backup {path} cannot be written: {error.strerror or error}.",
            fix="Name a file in a folder of this user, on a disk with enough space.",
        ) from error
    return done


def _files(archive: ArchiveWriter, config: Config, root: DataRoot, done: Backup) -> None:
    if config.path is not None:
        text = config.secrets.redactor.certain(config.path.read_text("utf-8-sig"))
        archive.add("config/milepost.yaml", text.encode())
        done.config = True
    for blob in blob_files(root.blobs):
        _blob(archive, blob, done)
    # The rest of memory is made anew from the ledger; these belong to no Session.
    for path in sorted((root.memory / SHARED_BLOCKS).glob("*.json")):
        archive.add(f"memory/{SHARED_BLOCKS}/{path.name}", path.read_bytes())
    if root.snapshots.is_dir():
        from milepost.snapshots.keeping import repositories, still_copy

        for repository in repositories(root.snapshots):
            with still_copy(repository) as files:
                for name, path in files:
                    with path.open("rb") as file:
                        archive.add_file(f"snapshots/{name}", file, path.stat().st_size)
            done.workspaces += 1


def _blob(archive: ArchiveWriter, blob: BlobFile, done: Backup) -> None:
    try:
        sound = blob.sound()
    except FileNotFoundError:
        return  # collected meanwhile, so nothing mentions it
    if not sound:
        done.damaged.append(blob.digest)
        return
    with blob.opened() as plain:
        archive.add_file(f"blobs/{blob.digest[:2]}/{blob.digest}", plain, plain.size)
    done.blobs += 1


def _finish(archive: ArchiveWriter, position: Position, done: Backup) -> None:
    done.instance_id, done.rows = position.instance_id, position.rows
    archive.finish(
        {
            "position": {"instance_id": position.instance_id, "rows": position.rows},
            "blobs": done.blobs,
            "damaged_blobs": done.damaged[:1000],
            "workspaces": done.workspaces,
        }
    )
