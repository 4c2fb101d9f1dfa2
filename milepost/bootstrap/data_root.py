"""The data root: the folder that holds everything of one instance, and the lock that makes it one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from milepost.domain.errors import InstanceLocked, StorageUnavailable

MIN_FREE_BYTES = 32 * 1024 * 1024
"""Below this no process starts: a ledger that cannot commit helps nobody."""

MAX_SOCKET_PATH_BYTES = 100
"""Linux takes 107, macOS 103."""

_OTHERS_FILES = ("temporal.db", "temporal.db-wal", "temporal.db-shm", "temporal.log", "podman-service.log")
"""Made by programs that leave what they write to the umask."""


@dataclass(frozen=True, slots=True)
class InstanceInfo:
    """What a running instance tells about itself, for clients on this machine.

    `config_path` is the file of its configuration, None without one; `config_digest` is `Config.digest`.
    """

    pid: int
    role: str
    socket: str
    release: str
    started_at: int
    api_url: str | None = None
    temporal_ui: str | None = None
    temporal_target: str | None = None
    config_path: str | None = None
    config_digest: str | None = None


@dataclass(frozen=True, slots=True)
class DataRoot:
    """Where things lie below the data root. Nothing is created before `prepare`."""

    path: Path

    @property
    def blobs(self) -> Path:
        return self.path / "blobs"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def memory(self) -> Path:
        return self.path / "memory"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def token(self) -> Path:
        return self.path / "api.token"

    @property
    def temporal_store(self) -> Path:
        return self.path / "temporal.db"

    @property
    def temporal_log(self) -> Path:
        return self.path / "temporal.log"

    @property
    def info(self) -> Path:
        return self.path / "instance.json"

    @property
    def socket(self) -> Path:
        """`api.sock`; for a path too long for a socket, one in a private folder of the temporary directory."""
        plain = self.path / "api.sock"
        if len(os.fsencode(plain)) <= MAX_SOCKET_PATH_BYTES:
            return plain
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"milepost-{os.getuid()}" / f"{digest}.sock"

    def prepare(self) -> None:
        """Make the folder (0700), or check that it is this user's, and prove that it can be written.

        The permissions of a folder that exists are its owner's affair and never changed. Where others may look into
        it, the files are private.

        Raises:
            StorageUnavailable: it cannot be made or written, belongs to another user, others may write it, or the disk
                is full; nothing is left behind.
        """
        try:
            if not self._make():
                self._require_own()
                self._close_files()
            if self.socket.parent != self.path:
                _private_folder(self.socket.parent)
            with tempfile.TemporaryFile(dir=self.path) as probe:
                probe.write(b"\0" * 4096)
                probe.flush()
                os.fsync(probe.fileno())
            free = shutil.disk_usage(self.path).free
        except OSError as error:
            raise _unusable(self.path, error) from error
        if free < MIN_FREE_BYTES:
            raise StorageUnavailable(
                f"The data root {self.path} has {free // 1024**2} MiB of free space; at least "
                f"{MIN_FREE_BYTES // 1024**2} MiB are needed.",
                fix="Free some space, or set MILEPOST_HOME to a folder on another disk.",
            )

    def _make(self) -> bool:
        """Whether the folder is new."""
        try:
            self.path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            if not self.path.is_dir():
                raise
            return False
        return True

    def _require_own(self) -> None:
        found = self.path.stat()
        where = shlex.quote(str(self.path))
        if found.st_uid != os.geteuid():
            raise StorageUnavailable(
                f"The data root {self.path} belongs to another user (uid {found.st_uid}, this is {os.geteuid()}).",
                fix="Set MILEPOST_HOME to a folder of this user, or, if the folder is Milepost's alone: "
                f"sudo chown -R {os.geteuid()} {where}",
            )
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o022:
            raise StorageUnavailable(
                f"The data root {self.path} can be written by other users (mode {mode:04o}).",
                fix="Set MILEPOST_HOME to a folder of Milepost's own, or, if this one is Milepost's alone: "
                f"chmod 700 {where}",
            )

    def _close_files(self) -> None:
        for name in _OTHERS_FILES:
            with contextlib.suppress(FileNotFoundError):
                found = (self.path / name).lstat()
                if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
                    (self.path / name).chmod(0o600)

    def read_info(self) -> InstanceInfo | None:
        """What the last instance wrote about itself; it need not be running any more."""
        try:
            values: dict[str, Any] = json.loads(self.info.read_text("utf-8"))
            return InstanceInfo(**values)
        except (OSError, ValueError, TypeError):
            return None

    def write_info(self, info: InstanceInfo) -> None:
        """Tell clients about this instance, whose servers have made their files by now. Raises StorageUnavailable."""
        temporary = self.info.with_suffix(".tmp")
        try:
            self._close_files()
            temporary.write_text(json.dumps(asdict(info)), "utf-8")
            temporary.replace(self.info)
        except OSError as error:
            raise _unusable(self.path, error) from error

    def clear_info(self) -> None:
        """Forget what this instance wrote."""
        with contextlib.suppress(OSError):
            self.info.unlink()

    def lock(self, role: str, *, shared: bool = False) -> InstanceLock:
        """Own the data root until the lock is released; `shared` owners exclude only an exclusive one.

        Raises:
            InstanceLocked: another process owns it; the message names its pid and socket.
        """
        return InstanceLock(self, "instance.lock", role, shared=shared)

    def serving_lock(self, role: str) -> InstanceLock:
        """Own the API socket of the data root. Raises InstanceLocked."""
        return InstanceLock(self, "api.lock", role, shared=False)


class InstanceLock:
    """An advisory lock on a file; the kernel frees it when the process ends, however it ends."""

    def __init__(self, root: DataRoot, name: str, role: str, *, shared: bool) -> None:
        path = root.path / name
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(root.path, error) from error
        try:
            fcntl.flock(self._handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            owner = _owner(self._handle)
            os.close(self._handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise _unusable(root.path, error) from error
            raise _locked(root, owner) from None
        if not shared:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, json.dumps({"pid": os.getpid(), "role": role}).encode(), 0)

    def release(self) -> None:
        """Give the lock up; calling it again does nothing."""
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> InstanceLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def _owner(handle: int) -> dict[str, Any]:
    try:
        value = json.loads(os.pread(handle, 1000, 0))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _locked(root: DataRoot, owner: dict[str, Any]) -> InstanceLocked:
    info = root.read_info()
    pid, role = owner.get("pid"), owner.get("role")
    who = f"milepost {role} (pid {pid})" if pid else "another Milepost process"
    socket = f", socket {info.socket}" if info is not None and info.pid == pid else ""
    return InstanceLocked(
        f"The data root {root.path} is in use by {who}{socket}.",
        fix="Use that instance, stop it, or set MILEPOST_HOME to another folder.",
    )


def _private_folder(path: Path) -> None:
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise OSError(errno.EPERM, f"{path} is not a private folder of this user")


def _unusable(path: Path, error: OSError) -> StorageUnavailable:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "is on a full disk" if full else f"cannot be used: {error.strerror or error}"
    return StorageUnavailable(
        f"The data root {path} {what}.",
        fix="Free some space, or set MILEPOST_HOME to a folder on another disk."
        if full
        else "Set MILEPOST_HOME to a folder that this user can write.",
    )
