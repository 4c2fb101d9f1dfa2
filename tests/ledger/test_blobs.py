"""Blobs: durable before they have a name, checked when they are read."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from milepost.domain.content import BlobRef
from milepost.domain.errors import BlobNotFound, StorageUnavailable
from milepost.storage import FileBlobStore
from milepost.storage.blob_files import blob_files
from milepost.storage.blob_form import MARK
from milepost.storage.blobs import PIECE_BYTES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "blobs"


@pytest.fixture
def store(root: Path) -> FileBlobStore:
    return FileBlobStore(root)


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("data", [b"", b"\0\xff", os.urandom(3_000_000)], ids=["empty", "binary", "large"])
async def test_bytes_come_back(store: FileBlobStore, root: Path, data: bytes) -> None:
    ref = await store.put(data, "text/plain")
    assert ref == BlobRef(hashlib.sha256(data).hexdigest(), len(data), "text/plain")
    assert await store.get(ref) == data
    assert await store.exists(ref)
    assert await FileBlobStore(root).get(ref) == data


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
async def test_bytes_come_back_in_pieces(store: FileBlobStore, size: int) -> None:
    data = os.urandom(size)
    pieces = [piece async for piece in store.stream(await store.put(data, "text/plain"))]
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)


async def test_a_damaged_blob_never_ends_well_in_pieces(store: FileBlobStore, root: Path) -> None:
    data = os.urandom(2 * PIECE_BYTES + 1)
    ref = await store.put(data, "text/plain")
    (file,) = _files(root)
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    pieces = []
    with pytest.raises(BlobNotFound, match="damaged"):
        async for piece in store.stream(ref):
            pieces.append(piece)
    assert len(pieces) == 2  # the last one is held back
    file.unlink()
    with pytest.raises(BlobNotFound, match="missing"):
        await anext(store.stream(ref))


TEXT = b"".join(b"%d bottles\n" % n for n in range(40_000))


@pytest.mark.parametrize("data", [TEXT, MARK + os.urandom(3000), MARK], ids=["text", "with the mark", "mark"])
async def test_what_gets_shorter_is_kept_compressed(store: FileBlobStore, root: Path, data: bytes) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100_001):
            yield data[start : start + 100_001]

    ref = await store.put(data, "text/plain")
    assert (ref.digest, ref.size) == (hashlib.sha256(data).hexdigest(), len(data))
    (file,) = _files(root)
    assert file.read_bytes().startswith(MARK)
    assert data is not TEXT or file.stat().st_size < len(data) / 3
    assert await store.get(ref) == data
    assert b"".join([piece async for piece in store.stream(ref)]) == data
    assert await store.exists(ref)
    before = file.stat().st_ino
    assert await store.put(data, "text/plain") == ref
    assert file.stat().st_ino == before
    file.unlink()
    assert await store.put_pieces(pieces(), "text/plain") == ref
    assert await store.get(ref) == data


async def test_a_blob_of_before_there_was_compression_is_read(store: FileBlobStore, root: Path) -> None:
    ref = await store.put(TEXT, "text/plain")
    (file,) = _files(root)
    file.write_bytes(TEXT)
    assert await store.get(ref) == TEXT
    assert b"".join([piece async for piece in store.stream(ref)]) == TEXT
    assert await store.exists(ref)
    (found,) = blob_files(root)
    assert found.sound()


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:900] + b"\0\0\0" + data[903:], lambda data: data[:30]]
)
async def test_a_damaged_compressed_blob_is_told(
    store: FileBlobStore, root: Path, damage: Callable[[bytes], bytes]
) -> None:
    ref = await store.put(TEXT, "text/plain")
    (file,) = _files(root)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(BlobNotFound, match="damaged"):
        await store.get(ref)
    with pytest.raises(BlobNotFound, match="damaged"):
        async for _ in store.stream(ref):
            pass
    (found,) = blob_files(root)
    assert not found.sound()
    assert await store.put(TEXT, "text/plain") == ref
    assert await store.get(ref) == TEXT


async def test_the_same_bytes_are_stored_once(store: FileBlobStore, root: Path) -> None:
    refs = await asyncio.gather(*(store.put(b"same", f"type/{n}") for n in range(10)))
    assert len({ref.digest for ref in refs}) == 1
    (file,) = _files(root)
    before = file.stat().st_ino
    await store.put(b"same", "text/plain")
    assert file.stat().st_ino == before


async def test_only_the_owner_may_read(store: FileBlobStore, root: Path) -> None:
    old = os.umask(0)
    try:
        await store.put(b"secret", "text/plain")
    finally:
        os.umask(old)
    (file,) = _files(root)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {stat.S_IMODE(path.stat().st_mode) for path in (file.parent, root)} == {0o700}


async def test_a_missing_blob(store: FileBlobStore) -> None:
    ref = BlobRef("0" * 64, 1, "text/plain")
    assert not await store.exists(ref)
    with pytest.raises(BlobNotFound, match="missing"):
        await store.get(ref)


@pytest.mark.parametrize("damage", [b"", b"whol", b"wholX", b"whole and more"])
async def test_a_damaged_blob_is_not_returned_and_can_be_stored_again(
    store: FileBlobStore, root: Path, damage: bytes
) -> None:
    ref = await store.put(b"whole", "text/plain")
    (file,) = _files(root)
    file.write_bytes(damage)
    with pytest.raises(BlobNotFound, match="damaged"):
        await store.get(ref)
    assert await store.put(b"whole", "text/plain") == ref
    assert await store.get(ref) == b"whole"


@pytest.mark.parametrize("digest", ["../../etc/passwd", "", "A" * 64, "0" * 63, "/" + "0" * 63, "0" * 64 + "\n"])
async def test_a_digest_is_no_path(store: FileBlobStore, digest: str) -> None:
    ref = BlobRef(digest, 1, "text/plain")
    assert not await store.exists(ref)
    with pytest.raises(BlobNotFound, match="not a SHA-256"):
        await store.get(ref)


async def test_a_root_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    with pytest.raises(StorageUnavailable) as error:
        await FileBlobStore(file / "blobs").put(b"x", "text/plain")
    assert error.value.fix


FULL_DISK = """
import asyncio, os, resource, sys
from collections.abc import AsyncIterator
from pathlib import Path
from milepost.domain.errors import StorageUnavailable
from milepost.storage import FileBlobStore

async def main(root):
    store = FileBlobStore(root)
    small = await store.put(b"small", "a/b")
    large = os.urandom(1_000_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        await store.put(large, "a/b")
    except StorageUnavailable as error:
        assert error.fix
    else:
        raise AssertionError("stored on a full disk")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert [path.name for path in root.rglob("*") if path.is_file()] == [small.digest]
    assert await store.get(await store.put(large, "a/b")) == large

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_full_disk_leaves_nothing_by_half(root: Path) -> None:
    """In a process whose files may not grow beyond a size."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(root)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


async def test_bytes_that_come_in_pieces(tmp_path: Path) -> None:
    store = FileBlobStore(tmp_path / "blobs")

    async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    ref = await store.put_pieces(pieces(b"ab", b"", b"cd"), "text/plain")
    assert ref == await store.put(b"abcd", "text/plain")
    assert await store.get(ref) == b"abcd"
    assert await store.put_pieces(pieces(b"abcd"), "text/plain") == ref

    async def broken() -> AsyncIterator[bytes]:
        yield b"xy"
        raise LookupError

    with pytest.raises(LookupError):
        await store.put_pieces(broken(), "text/plain")
    names = [path.name for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    assert names == [ref.digest]
