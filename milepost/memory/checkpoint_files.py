"""Checkpoints as files: `checkpoints/v1/KEY/SEQ.checkpoint` below the data root.

Folders are 0700 and files 0600. A file is written beside its place, flushed to the disk and then renamed, so a kill or
a loss of power leaves the files that were there, whole.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from milepost.domain.checkpoints import KEPT, MAX_ENCODED_BYTES
from milepost.domain.errors import CheckpointUnusable, StorageUnavailable
from milepost.ports.checkpoints import CheckpointFile

MAX_FILES = 1000
MAX_KEYS = 200_000
_NAME = re.compile(r"(\d{16})\.checkpoint")
_LEFT = re.compile(r"\.\d{16}\.[0-9a-f]{16}\.tmp")


class CheckpointFiles:
    """`CheckpointStore` in a folder, which is made with the first checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def files(self, key: str) -> list[CheckpointFile]:
        """Newest first."""
        found: list[CheckpointFile] = []
        with _storage(self._folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(self._folder / key):
                match = _NAME.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append(CheckpointFile(key, int(match[1]), status.st_size, status.st_mtime))
        return sorted(found, key=lambda file: -file.seq)[:MAX_FILES]

    def read(self, file: CheckpointFile) -> bytes:
        """The bytes of a checkpoint that only this user can have written."""
        try:
            handle = os.open(self._path(file.key, file.seq), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise CheckpointUnusable(f"The checkpoint cannot be opened: {error.strerror}.") from error
        with os.fdopen(handle, "rb") as opened:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise CheckpointUnusable("The checkpoint can be written by others; it is not trusted.")
            if status.st_size > MAX_ENCODED_BYTES:
                raise CheckpointUnusable(f"The checkpoint has {status.st_size} bytes, more than {MAX_ENCODED_BYTES}.")
            try:
                return opened.read(MAX_ENCODED_BYTES + 1)
            except OSError as error:
                raise CheckpointUnusable(f"The checkpoint cannot be read: {error.strerror}.") from error

    def write(self, key: str, seq: int, data: bytes) -> None:
        """Put it in place, then drop what is older than the newest three."""
        folder = self._folder / key
        with _storage(self._folder):
            for made in (self._folder.parent, self._folder, folder):
                with contextlib.suppress(FileExistsError):
                    made.mkdir(mode=0o700)
            temporary = folder / f".{seq:016d}.{secrets.token_hex(8)}.tmp"
            try:
                handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self._path(key, seq))
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync_folder(folder)
        for old in self.files(key)[KEPT:]:
            self.discard(old)

    def discard(self, file: CheckpointFile) -> None:
        """Remove it; the folder too if it was the last one."""
        with _storage(self._folder), contextlib.suppress(FileNotFoundError):
            self._path(file.key, file.seq).unlink()
            with contextlib.suppress(OSError):
                self._path(file.key, file.seq).parent.rmdir()

    def keys(self) -> list[str]:
        """The folders there are, at most 200,000. Raises StorageUnavailable."""
        with _storage(self._folder), contextlib.suppress(FileNotFoundError):
            return sorted(entry.name for entry in os.scandir(self._folder) if entry.is_dir(follow_symlinks=False))[
                :MAX_KEYS
            ]
        return []

    def usable_keys(self) -> list[str]:
        """The folders there are, if nobody else can write to the one they are in. Raises StorageUnavailable."""
        with _storage(self._folder), contextlib.suppress(FileNotFoundError):
            status = self._folder.stat()
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                raise StorageUnavailable(
                    f"Others can write to {self._folder}.", fix=f"chmod 700 {self._folder}, or remove the folder."
                )
        return self.keys()

    def leftovers(self, older_than: float) -> Iterator[Path]:
        """Temporary files of writers that were killed before a time in seconds since the epoch."""
        for key in self.keys():
            for entry in os.scandir(self._folder / key):
                with contextlib.suppress(FileNotFoundError):
                    if _LEFT.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < older_than:
                        yield Path(entry.path)

    def _path(self, key: str, seq: int) -> Path:
        return self._folder / key / f"{seq:016d}.checkpoint"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _storage(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(
            f"Checkpoints cannot be kept in {folder}: {error.strerror or error}.",
            fix="Check that the data root belongs to this user and has free space.",
        ) from error
