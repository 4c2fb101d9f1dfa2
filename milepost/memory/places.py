"""Where memory lies on disk, and how its files are read and written: owner-only, atomically, one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from milepost.domain.errors import MemoryUnavailable
from milepost.domain.memory import OwnerKind, Scope

LOCK_SECONDS = 10.0
LOCK_POLL_SECONDS = 0.005
PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


class Places:
    """Paths below `root`, the data root. Nothing is made before it is needed."""

    def __init__(self, root: Path) -> None:
        self._memory = root / "memory"

    def core(self, scope: Scope) -> Path:
        """The file of an owner's core blocks, or of one shared block."""
        below = ("core", "shared", "v1") if scope.kind is OwnerKind.SHARED else ("core", "v1")
        return self._memory.joinpath(*below, f"{scope.component}.json")

    def daily_log(self, scope: Scope) -> Path:
        """The folder of an owner's daily log."""
        return self._memory / "daily_log" / "v1" / scope.component

    def semantic(self, scope: Scope) -> Path:
        """The folder of an owner's semantic store."""
        return self._memory / "semantic" / "v1" / scope.component


def make_folder(path: Path) -> None:
    """Make a folder that only its owner can look into, with those above it. Raises OSError."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        # Somebody else may be making it.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(PRIVATE_FOLDER)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock of `path` (a file beside it) among all threads and processes of this host.

    Raises MemoryUnavailable: another one held it for 10 seconds.
    """
    make_folder(path.parent)
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise MemoryUnavailable(
                    f"{path} was in use by somebody else for {LOCK_SECONDS:.0f} seconds.", fix="Try again."
                ) from None
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` in the place of the file at once: whoever reads it gets the old bytes or the new ones.

    Durable on return. Raises OSError; the old file is left then.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make names in a folder durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn OSError into MemoryUnavailable."""
    try:
        yield
    except OSError as error:
        raise MemoryUnavailable(
            f"{error.filename or path} cannot be used ({error.strerror or type(error).__name__}).",
            fix="Check its owner, its permissions and the free space of its disk.",
        ) from error
