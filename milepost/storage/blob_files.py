"""The files of a blob store: listing them, and taking away what nothing mentions."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from milepost.storage.blob_form import Damaged, PlainReader
from milepost.storage.blobs import PIECE_BYTES, placing

_FOLDER = re.compile("[0-9a-f]{2}")
_NAME = re.compile("[0-9a-f]{64}")
_LEFT = re.compile(r"\.[0-9a-f]{16}\.tmp")


@dataclass(frozen=True, slots=True)
class BlobFile:
    """`size` is what it takes on disk; `at` is when it was last put there, in seconds since the epoch."""

    digest: str
    path: Path
    size: int
    at: float

    def sound(self) -> bool:
        """Whether its bytes are what its name says. Raises OSError."""
        digest = hashlib.sha256()
        try:
            with self.opened() as reader:
                for piece in reader.pieces(PIECE_BYTES):
                    digest.update(piece)
        except Damaged:
            return False
        return digest.hexdigest() == self.digest

    def opened(self) -> PlainReader:
        """Its plain bytes. Raises OSError."""
        return PlainReader(self.path)


def blob_files(root: Path) -> Iterator[BlobFile]:
    """Every blob of the store, in order. Raises OSError."""
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if not _FOLDER.fullmatch(folder.name) or not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if _NAME.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    yield BlobFile(path.name, path, status.st_size, status.st_mtime)


def remove_blob(root: Path, blob: BlobFile, older_than: float) -> bool:
    """Remove the file unless it was put there again since `older_than`; whether it was removed. Raises OSError."""
    with placing(root, alone=True):
        try:
            if blob.path.stat().st_mtime >= older_than:
                return False
            blob.path.unlink()
        except FileNotFoundError:
            return False
    return True


def leftovers(root: Path, older_than: float) -> Iterator[Path]:
    """Temporary files of writers that were killed. Raises OSError."""
    for folder in (root, *(root.iterdir() if root.is_dir() else ())):
        for path in folder.iterdir() if folder.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                if _LEFT.fullmatch(path.name) and path.stat().st_mtime < older_than:
                    yield path
