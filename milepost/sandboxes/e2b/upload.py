"""The Workspace's files as an archive, for a sandbox on another machine."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from milepost.domain.errors import SandboxUnavailable

MAX_ENTRIES = 200_000


class _Bounded:
    """A file that takes at most `limit` bytes."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._left, self._limit = file, limit, limit

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise SandboxUnavailable(
                f"The packed Workspace is over {self._limit} bytes, more than is sent to E2B.",
                fix="Raise sandbox.e2b.upload_bytes, or open the Session on a smaller folder.",
            )
        return self._file.write(data)


def pack(folder: Path, target: IO[bytes], limit: int) -> int:
    """Write `folder` as a gzip-compressed tar; return how many entries were left out (sockets, devices, pipes).

    Links are packed as links and never followed. Blocking.

    Raises:
        SandboxUnavailable: it is too large, has too many entries, or cannot be read; says which.
    """
    left_out = 0
    try:
        with tarfile.open(fileobj=_Bounded(target, limit), mode="w|gz", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            for count, path in enumerate(_walk(folder)):
                if count >= MAX_ENTRIES:
                    raise SandboxUnavailable(
                        f"The Workspace has more than {MAX_ENTRIES} entries, more than are sent to E2B.",
                        fix="Open the Session on a smaller folder.",
                    )
                if not _kept(path):
                    left_out += 1
                    continue
                archive.add(path, arcname=str(path.relative_to(folder)), recursive=False, filter=_anonymous)
    except OSError as error:
        raise SandboxUnavailable(
            f"The Workspace cannot be sent to E2B: {error.filename or folder}: {error.strerror or error}.",
            fix="Let this user read all of it.",
        ) from None
    return left_out


def _walk(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise error

    for parent, folders, files in os.walk(folder, onerror=fail):
        for name in sorted((*folders, *files)):
            yield Path(parent, name)


def _kept(path: Path) -> bool:
    mode = path.lstat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Owners of this host mean nothing there."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode &= 0o777
    return entry
