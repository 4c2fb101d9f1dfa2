"""The file of a backup: a gzipped tar of entries that are written and read in order, with bounded memory.

The first entry, `backup.json`, says what the file is; the last, `end.json`, has the number of entries before it and a
SHA-256 over the line `{sha256} {size} {name}` of each, in order. So a file that was cut off, damaged or put together
from others is told from a whole one. Any tar program can list and unpack it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from milepost.domain.errors import BackupTooNew, BackupUnusable

FORMAT: Final = 1
"""Of the archive. A reader refuses a greater one."""

FIRST: Final = "backup.json"
LAST: Final = "end.json"
MAX_JSON_BYTES: Final = 64 * 1024**2
PIECE_BYTES: Final = 256 * 1024
_COMPRESSION: Final = 1
_NAMES: Final = re.compile(
    r"backup\.json|end\.json|config/milepost\.yaml"
    r"|tables/[0-9]{3}-[a-z_]{1,60}/[0-9]{6}\.jsonl"
    r"|blobs/[0-9a-f]{2}/[0-9a-f]{64}"
    r"|memory/core/shared/v1/[a-z0-9_-]{1,100}\.json"
    r"|snapshots/[A-Za-z0-9][A-Za-z0-9_.-]{0,80}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,120}){1,12}"
)
"""No other name is accepted, so that no entry can be put outside of where it belongs."""


class Readable(Protocol):
    """What an entry can be made of."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; `file` can be read until the next one is asked for."""

    name: str
    size: int
    file: _Measured

    def json(self) -> Any:
        """The entry's whole as JSON. Raises BackupUnusable."""
        try:
            return json.loads(self.file.read(MAX_JSON_BYTES))
        except ValueError as error:
            raise _unusable(f"{self.name} is no JSON") from error

    def pieces(self) -> Iterator[bytes]:
        """The entry in bounded pieces."""
        while piece := self.file.read(PIECE_BYTES):
            yield piece


class _Measured(io.RawIOBase):
    """Passes bytes on and keeps their digest and number."""

    def __init__(self, inner: Readable) -> None:
        self._inner = inner
        self.digest = hashlib.sha256()
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._inner.read(size)
        self.digest.update(data)
        self.count += len(data)
        return data

    def drain(self) -> None:
        """Read what nobody asked for."""
        while self.read(PIECE_BYTES):
            pass


class _Chain:
    """The digest over all entries so far."""

    def __init__(self) -> None:
        self.entries = 0
        self._digest = hashlib.sha256()

    def add(self, name: str, measured: _Measured) -> None:
        self._digest.update(f"{measured.digest.hexdigest()} {measured.count} {name}\n".encode("ascii"))
        self.entries += 1

    def end(self) -> dict[str, Any]:
        return {"entries": self.entries, "sha256": self._digest.hexdigest()}


class ArchiveWriter:
    """Writes entries. Made by `writing`; everything here blocks."""

    def __init__(self, tar: tarfile.TarFile, at: int) -> None:
        self._tar = tar
        self._at = at
        self._chain = _Chain()

    def add(self, name: str, data: bytes) -> None:
        """Add bytes that are in memory."""
        self.add_file(name, io.BytesIO(data), len(data))

    def add_json(self, name: str, value: Any) -> None:
        """Add a JSON document."""
        self.add(name, json.dumps(value, indent=1).encode("ascii") + b"\n")

    def add_file(self, name: str, file: Readable, size: int) -> None:
        """Add `size` bytes of what can be read. Raises OSError, also if there are fewer."""
        if not _NAMES.fullmatch(name):
            raise BackupUnusable(f"A file of the data root has a name that no backup can have: {name[:200]!r}.")
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, 0o600, self._at // 1_000_000
        measured = _Measured(file)
        self._tar.addfile(info, measured)
        # tarfile would keep what it knows of every entry in memory.
        self._tar.members.clear()  # type: ignore[attr-defined]
        self._chain.add(name, measured)

    def finish(self, facts: dict[str, Any]) -> None:
        """Add the last entry."""
        self.add_json(LAST, self._chain.end() | facts)


@contextmanager
def writing(path: Path, at: int) -> Iterator[ArchiveWriter]:
    """A new file of mode 0600, durable after the block. Raises OSError; FileExistsError if there is one.

    Nothing is left behind if the block raises.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            with (
                gzip.GzipFile(
                    filename="", fileobj=file, mode="wb", compresslevel=_COMPRESSION, mtime=at // 1_000_000
                ) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                yield ArchiveWriter(tar, at)
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def entries(path: Path) -> Iterator[Entry]:
    """Every entry from first to last; the whole is proven when the iteration ends, and each blob when it is passed.

    Raises:
        BackupUnusable: the file is no backup, is damaged, or ends early.
        BackupTooNew: a later release made it.
    """
    try:
        with gzip.open(path, "rb") as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            yield from _entries(tar)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _unusable(f"it cannot be read to its end ({error})") from error
    except OSError as error:
        raise BackupUnusable(f"The backup {path} cannot be read: {error.strerror or error}.") from error


def _entries(tar: tarfile.TarFile) -> Iterator[Entry]:
    chain = _Chain()
    ended = False
    while (info := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined]
        file = tar.extractfile(info) if info.isreg() else None
        if file is None or not _NAMES.fullmatch(info.name):
            raise _unusable(f"it has an entry that no backup has: {info.name[:200]!r}")
        if ended or (info.name == FIRST) is not (chain.entries == 0):
            raise _unusable(f"the entry {info.name} is not where it belongs")
        entry = Entry(info.name, info.size, _Measured(file))
        if info.name == LAST:
            ended = True
            _check_end(last := entry.file.read(MAX_JSON_BYTES), chain)
            yield Entry(info.name, info.size, _Measured(io.BytesIO(last)))
            continue
        if info.name == FIRST:
            first = entry.file.read(MAX_JSON_BYTES)
            _check_format(first)
            yield Entry(info.name, info.size, _Measured(io.BytesIO(first)))
        else:
            yield entry
        entry.file.drain()
        digest = entry.file.digest.hexdigest()
        if info.name.startswith("blobs/") and info.name.rpartition("/")[2] != digest:
            raise _unusable(f"the blob {info.name.rpartition('/')[2]} is damaged")
        chain.add(info.name, entry.file)
    if not ended:
        raise _unusable("its end is missing")


def _check_format(first: bytes) -> None:
    try:
        found = json.loads(first)["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise _unusable("its first entry does not say what it is") from error
    if type(found) is not int or found < 1:
        raise _unusable("its first entry names no format")
    if found > FORMAT:
        raise BackupTooNew(
            f"The backup has format {found}; this release knows formats up to {FORMAT}.",
            fix="Use the release that made it, or a later one.",
        )


def _check_end(last: bytes, chain: _Chain) -> None:
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, dict) or {key: found.get(key) for key in ("entries", "sha256")} != chain.end():
        raise _unusable("its entries are not those that were written")


def _unusable(why: str) -> BackupUnusable:
    return BackupUnusable(f"The file is no whole backup: {why}.", fix="Use another copy of it.")
