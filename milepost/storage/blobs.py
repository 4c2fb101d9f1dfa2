"""Blobs as files, addressed by content, compressed where that saves something (see `blob_form`)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from pathlib import Path
from typing import BinaryIO

from milepost.domain.content import BlobRef
from milepost.domain.errors import BlobNotFound, StorageUnavailable
from milepost.storage.blob_form import Damaged, PlainReader, PlainWriter

PIECE_BYTES = 256 * 1024
_DIGEST = re.compile("[0-9a-f]{64}")


class FileBlobStore:
    """`ports.blobs.BlobStore` under `root`: files of mode 0600 at `{first two digits}/{digest}`, folders 0700.

    A blob appears under its name only when its bytes are on disk (temporary file, fsync, rename, fsync of the folder).
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, data: bytes, media_type: str) -> BlobRef:
        return await asyncio.to_thread(self._put, data, media_type)

    async def put_pieces(self, pieces: AsyncIterable[bytes], media_type: str) -> BlobRef:
        digest, size = hashlib.sha256(), 0
        try:
            await asyncio.to_thread(_make_folder, self._root)
            temporary = self._root / f".{secrets.token_hex(8)}.tmp"
            try:
                with await asyncio.to_thread(_created, temporary) as file:
                    writer = None
                    async for piece in pieces:
                        digest.update(piece)
                        size += len(piece)
                        if writer is None:
                            if not piece:
                                continue
                            writer = await asyncio.to_thread(PlainWriter, file, piece)
                        await asyncio.to_thread(writer.write, piece)
                    if writer is not None:
                        await asyncio.to_thread(writer.finish)
                    await asyncio.to_thread(_flush, file)
                ref = BlobRef(digest.hexdigest(), size, media_type)
                await asyncio.to_thread(_place, self._root, temporary, self._path(ref.digest))
            finally:
                await asyncio.to_thread(temporary.unlink, missing_ok=True)
        except OSError as error:
            raise _unstored(size, self._root, error) from error
        return ref

    async def get(self, ref: BlobRef) -> bytes:
        return await asyncio.to_thread(self._get, ref)

    async def stream(self, ref: BlobRef) -> AsyncGenerator[bytes, None]:
        path = self._path(ref.digest)
        digest = hashlib.sha256()
        held: bytes | None = None
        with await asyncio.to_thread(_opened, path, ref) as file:
            while piece := await asyncio.to_thread(_next_piece, file, digest, path):
                if held is not None:
                    yield held
                held = piece
        # The last piece is held back until the whole is known to be right.
        if digest.hexdigest() != ref.digest:
            raise _damaged(ref)
        if held is not None:
            yield held

    async def exists(self, ref: BlobRef) -> bool:
        return await asyncio.to_thread(self._exists, ref)

    def _path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise BlobNotFound(f"'{digest[:80]}' is not a SHA-256 digest.")
        return self._root / digest[:2] / digest

    def _put(self, data: bytes, media_type: str) -> BlobRef:
        ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data), media_type)
        path = self._path(ref.digest)
        try:
            _make_folder(path.parent)
            # A damaged file is replaced; a whole one may be another writer's that is not yet durable in its folder.
            if not _kept(self._root, path, data):
                _write(self._root, path, data)
            _sync(path.parent)
        except OSError as error:
            raise _unstored(len(data), self._root, error) from error
        return ref

    def _get(self, ref: BlobRef) -> bytes:
        path = self._path(ref.digest)
        try:
            with PlainReader(path) as reader:
                data = reader.read(reader.size + 1)
        except FileNotFoundError:
            raise _missing(ref) from None
        except OSError as error:
            raise _unreadable(path, error) from error
        except Damaged as error:
            raise _damaged(ref) from error
        if hashlib.sha256(data).hexdigest() != ref.digest:
            raise _damaged(ref)
        return data

    def _exists(self, ref: BlobRef) -> bool:
        try:
            with PlainReader(self._path(ref.digest)) as reader:
                return reader.size == ref.size
        except (OSError, BlobNotFound):
            return False


def _opened(path: Path, ref: BlobRef) -> PlainReader:
    try:
        return PlainReader(path)
    except FileNotFoundError:
        raise _missing(ref) from None
    except OSError as error:
        raise _unreadable(path, error) from error


def _next_piece(file: PlainReader, digest: hashlib._Hash, path: Path) -> bytes:
    try:
        piece = file.read(PIECE_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error
    except Damaged:
        digest.update(b"what is damaged has no digest")
        return b""
    digest.update(piece)
    return piece


def _missing(ref: BlobRef) -> BlobNotFound:
    return BlobNotFound(f"The blob {ref.digest} ({ref.size} bytes) is missing.", fix="Restore it from a backup.")


def _damaged(ref: BlobRef) -> BlobNotFound:
    return BlobNotFound(f"The blob {ref.digest} is damaged.", fix="Restore it from a backup.")


def _unreadable(path: Path, error: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        f"The blob {path} cannot be read: {error.strerror or error}.", fix="Check the disk and the permissions."
    )


def _unstored(size: int, root: Path, error: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        f"A blob of {size} bytes cannot be stored under {root}: {error.strerror or error}.",
        fix="Check that the folder belongs to this user and that the disk has space, then repeat.",
    )


def _created(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _place(root: Path, temporary: Path, path: Path) -> None:
    _make_folder(path.parent)
    with placing(root):
        temporary.replace(path)
    _sync(path.parent)


@contextlib.contextmanager
def placing(root: Path, *, alone: bool = False) -> Iterator[None]:
    """Put a blob in its place, or (`alone`) take one away: never both at once, in no process."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def _kept(root: Path, path: Path, data: bytes) -> bool:
    """Whether the blob is there already; it is as good as new then, which tells a collection to leave it."""
    with placing(root):
        if not _holds(path, data):
            return False
        os.utime(path)
        return True


def _holds(path: Path, data: bytes) -> bool:
    try:
        with PlainReader(path) as reader:
            return reader.size == len(data) and reader.read(len(data) + 1) == data
    except (FileNotFoundError, Damaged):
        return False


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _sync(folder.parent)


def _write(root: Path, path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            writer = PlainWriter(file, data)
            writer.write(data)
            writer.finish()
            file.flush()
            os.fsync(file.fileno())
        with placing(root):
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
