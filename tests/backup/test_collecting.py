"""Collection takes what nothing mentions, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from milepost.bootstrap import collecting
from milepost.bootstrap.collecting import Collected, collect
from milepost.snapshots import GitSnapshots
from milepost.storage import FileBlobStore, referenced, upgrade
from tests.backup.conftest import Instance, Make

HOUR = 3600.0


def _age(root: Path) -> None:
    """Make everything two days old."""
    old = time.time() - 48 * HOUR
    for path in root.rglob("*"):
        os.utime(path, (old, old))


async def _collect(instance: Instance, *, dry_run: bool = False) -> Collected:
    return await collect(instance.config, instance.root, grace_seconds=24 * HOUR, dry_run=dry_run)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def test_what_nothing_mentions_goes(make: Make, tmp_path: Path, project: Path, kind: str) -> None:
    instance = make("home", kind)
    await upgrade(instance.config.database_url())
    filled = await instance.fill(project)
    store = FileBlobStore(instance.root.blobs)
    unused = await store.put(b"nobody's", "text/plain")
    left = instance.root.blobs / unused.digest[:2] / ".0123456789abcdef.tmp"
    left.write_bytes(b"half")
    snapshots = GitSnapshots(instance.root.snapshots)
    trees = []
    for content in ("two", "three"):
        (project / "a.txt").write_text(content)
        trees.append((await snapshots.take("wsp_1", project)).tree)
    assert await _collect(instance) == Collected()
    _age(instance.root.path)
    new = await store.put(b"new", "text/plain")

    expected = Collected(blobs=1, bytes=unused.size, states=1, leftovers=1)
    assert await _collect(instance, dry_run=True) == expected
    assert left.exists() and await store.exists(unused)
    assert await _collect(instance) == expected
    assert not left.exists() and not await store.exists(unused)
    assert await store.exists(filled.blob) and await store.exists(new)
    # The one the ledger mentions and the present one stay; the one between is gone with its files.
    assert await snapshots.export("wsp_1", filled.tree, tmp_path / "first") == 1
    assert await snapshots.export("wsp_1", trees[1], tmp_path / "third") == 1
    with pytest.raises(Exception, match="There is no snapshot"):
        await snapshots.export("wsp_1", trees[0], tmp_path / "second")
    assert (await _collect(instance)).states == 0


async def test_what_is_put_in_place_again_during_a_collection_stays(
    make: Make, tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool's output is stored before the ledger mentions it, also if the same bytes lie there, old and unused."""
    instance = make("home", "sqlite")
    await upgrade(instance.config.database_url())
    store = FileBlobStore(instance.root.blobs)
    snapshots = GitSnapshots(instance.root.snapshots)
    again, piecewise = [await store.put(data, "text/plain") for data in (b"again", b"piecewise")]
    trees = []
    for content in ("one", "two"):
        (project / "a.txt").write_text(content)
        trees.append((await snapshots.take("wsp_1", project)).tree)
    _age(instance.root.path)

    async def meanwhile(url: str, candidates: set[str]) -> set[str]:
        found = await referenced(url, candidates)
        assert not found and {again.digest, piecewise.digest, trees[0]} <= candidates
        await store.put(b"again", "text/plain")

        async def pieces():  # type: ignore[no-untyped-def]
            yield b"piece"
            yield b"wise"

        await store.put_pieces(pieces(), "text/plain")
        (project / "a.txt").write_text("one")
        assert (await snapshots.take("wsp_1", project)).tree == trees[0]
        (project / "a.txt").write_text("three")
        await snapshots.take("wsp_1", project)
        return found

    monkeypatch.setattr(collecting, "referenced", meanwhile)
    assert await _collect(instance) == Collected()
    assert await store.exists(again) and await store.exists(piecewise)
    assert await snapshots.export("wsp_1", trees[0], tmp_path / "out") == 1
