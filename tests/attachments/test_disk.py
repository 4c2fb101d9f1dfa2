"""Files in collections and backups of an instance."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from milepost.bootstrap.backing_up import back_up
from milepost.bootstrap.collecting import collect
from milepost.bootstrap.restoring import restore
from milepost.services.forks import ForkFrom
from milepost.storage import upgrade
from tests.attachments.conftest import Files, make_files
from tests.backup.conftest import Instance, Make, make

__all__ = ["make"]

DAY = 24 * 3600.0


def blobs(files: Files) -> set[str]:
    return {path.name for path in (files.root / "blobs").glob("??/*")}


async def collected(instance: Instance, *, dry_run: bool) -> int:
    old = time.time() - 2 * DAY
    for path in instance.root.path.rglob("*"):
        os.utime(path, (old, old))
    return (await collect(instance.config, instance.root, grace_seconds=DAY, dry_run=dry_run)).blobs


async def session_of(files: Files) -> str:
    session = await files.bench.open()
    await files.attach(session, "once.txt", b"for one turn")
    kept = await files.attach(session, "kept.txt", b"removed later", "session")
    await files.turn(session)
    await files.attachments.remove(kept.ref.attachment_id)
    await files.attach(session, "waits.txt", b"for the next turn")
    return session


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
async def test_collection_keeps_what_a_turn_or_a_session_refers_to(make: Make, kind: str) -> None:
    instance = make("home", kind)
    await upgrade(instance.config.database_url())
    async with instance.ledger() as ledger:
        files = make_files(ledger, instance.root.path)
        session = await session_of(files)
        mistake = await files.attach(session, "mistake.txt", b"not for anybody")
        fork = (await files.bench.forks.fork(ForkFrom(session, "test"))).session.session_id
        before = blobs(files)
        assert await collected(instance, dry_run=True) == 0
        await files.attachments.remove(mistake.ref.attachment_id)
        assert await collected(instance, dry_run=True) == 1 and blobs(files) == before
        assert await collected(instance, dry_run=False) == 1
        assert before - blobs(files) == {mistake.ref.blob.digest}
        assert await files.bench.verified() == []
        for each in (session, fork):
            for item in await files.attachments.page(each):
                assert len(await files.contents.load_bytes(item.ref.blob)) == item.ref.blob.size


@pytest.mark.slow
async def test_a_backup_has_the_files(make: Make, tmp_path: Path) -> None:
    old = make("old", "sqlite")
    await upgrade(old.config.database_url())
    async with old.ledger() as ledger:
        files = make_files(ledger, old.root.path)
        session = await session_of(files)
        before = await files.attachments.page(session)
    archive = tmp_path / "backup.tar.gz"
    assert (await back_up(old.config, old.root, archive)).blobs == 3
    new = make("new", "sqlite")
    found = await restore(new.config, new.root, archive, verify=True)
    assert found.verification is not None and found.verification.findings == []
    async with new.ledger() as ledger:
        files = make_files(ledger, new.root.path)
        assert await files.attachments.page(session) == before
        assert await files.selected(session) == ["waits.txt"]
        for item in before:
            assert len(await files.contents.load_bytes(item.ref.blob)) == item.ref.blob.size
