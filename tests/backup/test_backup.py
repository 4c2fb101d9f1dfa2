"""A backup of a live instance, put back into an empty one on either database."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.bootstrap.backing_up import back_up
from milepost.bootstrap.restoring import CONFIG_NAME, restore
from milepost.bootstrap.system import SystemClock
from milepost.domain.errors import BackupTooNew, BackupUnusable, MilepostError, TargetNotEmpty
from milepost.domain.memory import BlockVersion, Scope
from milepost.ledger.chain import StoredEvent
from milepost.memory.block_files import FileBlocks
from milepost.ports.ledger import Ledger
from milepost.security.token import load_or_create_token
from milepost.services.exporting.service import ExportFormat, ExportService
from milepost.snapshots import GitSnapshots
from milepost.storage import archive, upgrade
from milepost.storage.archive import FIRST, LAST, entries, writing
from tests.backup.conftest import PROVIDER, Instance, Make
from tests.history.build import Builder, Said
from tests.ledger.samples import as_in_0001

POSTGRES = pytest.mark.postgres
SECRET = "sk-canary-3f9c0a71d2e84b55"


async def _export(instance: Instance, ledger: Ledger, session: str) -> list[bytes]:
    """The lossless export without the line that has the time."""
    service = ExportService(ledger, instance.contents, SystemClock(), "0.1.0")
    document = b"".join([piece async for piece in await service.export(session, ExportFormat.JSON)])
    return [line for line in document.splitlines() if not line.startswith(b'"source":')]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("sqlite", "sqlite"),
        pytest.param("postgresql", "sqlite", marks=POSTGRES),
        pytest.param("sqlite", "postgresql", marks=POSTGRES),
    ],
)
async def test_what_is_put_back_is_what_was_backed_up(
    make: Make, tmp_path: Path, project: Path, source: str, target: str
) -> None:
    old = make("old", source)
    await upgrade(old.config.database_url())
    filled = await old.fill(project)
    team = BlockVersion(1, "Known to all.", 1, "agent:coder", "k")
    await FileBlocks(old.root.path).write(Scope.shared("team"), "team", team)
    file = tmp_path / "backup.tar.gz"
    done = await back_up(old.config, old.root, file)
    assert (done.blobs, done.damaged, done.workspaces, done.config) == (1, [], 1, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    new = make("new", target)
    found = await restore(new.config, new.root, file, verify=True)
    assert found.verification is not None and found.verification.findings == []
    assert (found.interrupted, found.verification.blobs, found.opened) == (1, 1, [filled.running_session])
    assert (new.root.path / CONFIG_NAME).read_text() == PROVIDER
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in new.root.path.rglob("*")} == {0}
    assert await FileBlocks(new.root.path).versions(Scope.shared("team"), "team") == (team,)
    async with old.ledger() as before, new.ledger() as after:
        sessions = await before.read(lambda tx: tx.sessions.page(status=None, before=None, limit=100))
        assert await after.read(lambda tx: tx.memory_tasks.count()) >= len(sessions), "the rest is made anew"
        assert before.instance_id == after.instance_id == done.instance_id == found.instance_id
        assert await _export(new, after, filled.session) == await _export(old, before, filled.session)
        assert (await after.read(lambda tx: tx.turns.get(filled.running_turn))).state == "interrupted"
        stored = await after.read(lambda tx: tx.events.read(filled.running_session))
        assert stored[-1].type == "turn.interrupted"
    out = tmp_path / "out"
    assert await GitSnapshots(new.root.snapshots).export("wsp_1", filled.tree, out) == 1
    assert (out / "a.txt").read_text() == "one"


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=POSTGRES)])
async def test_a_backup_beside_writers_is_one_moment_of_the_ledger(make: Make, tmp_path: Path, kind: str) -> None:
    old = make("old", kind)
    await upgrade(old.config.database_url())
    files = [tmp_path / f"{number}.tar.gz" for number in range(3)]
    async with old.ledger() as ledger:
        builder = Builder(ledger)
        session = await builder.session()
        stopped = asyncio.Event()

        async def write() -> int:
            count = 0
            while not stopped.is_set() and count < 2000:
                request = await old.contents.store(f"{count}" + "z" * 300_000)
                await builder.turn(session, Said(request))
                count += 1
            return count

        writing_ = asyncio.create_task(write())
        rows = []
        for file in files:
            rows.append((await back_up(old.config, old.root, file)).rows)
        stopped.set()
        assert await writing_ > 0
    for number, file in enumerate(files):
        new = make(f"new{number}", "sqlite")
        found = await restore(new.config, new.root, file, verify=True)
        assert found.verification is not None and found.verification.findings == []
        assert (found.verification.events, found.verification.blobs) == (rows[number]["events"], rows[number]["turns"])


async def test_no_secret_is_in_a_backup(
    make: Make, tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOUSE_KEY", SECRET)
    old = make("old", "sqlite")
    await upgrade(old.config.database_url())
    await old.fill(project)
    token = load_or_create_token(old.root.token)
    assert old.config.path is not None
    with old.config.path.open("a") as config:
        config.write(f"# a note that should not be here: {SECRET}\n")
    file = tmp_path / "backup.tar.gz"
    await back_up(old.config, old.root, file)
    plain = gzip.decompress(file.read_bytes())
    assert b"api_key: 'env:HOUSE_KEY'" in plain
    assert SECRET.encode() not in plain
    assert token.encode() not in plain


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda file: void(file.write_bytes(change(file.read_bytes())))


def void(_value: object) -> None:
    """A value that nobody needs."""


def _plain(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change what is inside, and pack it soundly again."""
    return _bytes(lambda data: gzip.compress(change(gzip.decompress(data)), 1))


def _part_0001(stored: list[StoredEvent]) -> bytes:
    """The part of the table of events as a release with the first schema wrote it."""
    kinds = dict.fromkeys(("payload", "prev_hash", "hash"), "bytes")
    kinds |= dict.fromkeys(("seq", "version", "at"), "integer")
    rows = as_in_0001(stored)
    columns = [[name, kinds.get(name, "text")] for name in rows[0]]
    lines: list[Any] = [{"table": "events", "columns": columns}]
    text = lambda value: value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value  # noqa: E731
    lines += [[text(value) for value in row.values()] for row in rows]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


SCHEMA_1 = ("ledger_meta", "streams", "events", "workspaces", "sessions")
"""Tables with rows that the first schema has; of events in another form."""


def _rewritten(
    name: str,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    tables: tuple[str, ...] | None = None,
    events: bytes | None = None,
) -> Callable[[Path], None]:
    """Write a whole archive anew with one entry changed, and of the tables only some."""

    def apply(file: Path) -> None:
        kept = [(entry.name, b"".join(entry.pieces())) for entry in entries(file)]
        file.unlink()
        with writing(file, 0) as made:
            for entry, data in kept:
                if tables and entry.startswith("tables/") and entry.split("/")[1][4:] not in tables:
                    continue
                if events is not None and entry.split("/")[1:][:1] and entry.split("/")[1].endswith("-events"):
                    data = events
                value = change(json.loads(data)) if entry == name else None
                if entry == LAST:
                    facts = json.loads(data)
                    made.finish({key: facts[key] for key in facts.keys() - {"entries", "sha256"}})
                elif value is not None:
                    made.add_json(entry, value)
                else:
                    made.add(entry, data)

    return apply


def _with_entry(name: str) -> Callable[[Path], None]:
    def apply(file: Path) -> None:
        with tarfile.open(file, "w:gz") as tar:
            for entry, data in ((FIRST, b'{"format": 1}'), (name, b"x")):
                info = tarfile.TarInfo(entry)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    return apply


@pytest.mark.parametrize(
    ("damage", "error", "told"),
    [
        (_bytes(lambda data: data[: len(data) // 2]), BackupUnusable, "cannot be read to its end"),
        (_bytes(lambda data: b"not a backup"), BackupUnusable, "cannot be read to its end"),
        (
            _plain(lambda data: data.replace(b"turn.begun", b"turn.bogun")),
            BackupUnusable,
            "not those that were written",
        ),
        (_plain(lambda data: data[: data.rindex(b"end.json")]), BackupUnusable, "no whole backup"),
        (_plain(lambda data: data.replace(b"x\0\xed", b"y\0\xed")), BackupUnusable, "is damaged"),
        (_with_entry("../outside"), BackupUnusable, "an entry that no backup has"),
        (_with_entry("blobs/ab/../../outside"), BackupUnusable, "an entry that no backup has"),
        (_rewritten(FIRST, lambda value: value | {"format": 2}), BackupTooNew, "format 2"),
        (_rewritten(FIRST, lambda value: value | {"schema": "9999"}), BackupTooNew, "schema 9999"),
    ],
)
async def test_what_is_no_whole_backup_is_refused_and_leaves_nothing(
    make: Make, tmp_path: Path, project: Path, damage: Callable[[Path], None], error: type[MilepostError], told: str
) -> None:
    old = make("old", "sqlite")
    await upgrade(old.config.database_url())
    await old.fill(project)
    file = tmp_path / "backup.tar.gz"
    await back_up(old.config, old.root, file)
    damage(file)
    new = make("new", "sqlite")
    with pytest.raises(error, match=told):
        await restore(new.config, new.root, file, verify=True)
    assert list(new.root.path.iterdir()) == []
    assert not (tmp_path / "outside").exists()


async def test_nothing_is_put_over_something(make: Make, tmp_path: Path, project: Path) -> None:
    old = make("old", "sqlite")
    await upgrade(old.config.database_url())
    filled = await old.fill(project)
    file = tmp_path / "backup.tar.gz"
    await back_up(old.config, old.root, file)
    with pytest.raises(TargetNotEmpty, match=r"backup\.tar\.gz exists already"):
        await back_up(old.config, old.root, file)
    with pytest.raises(TargetNotEmpty, match="is not empty"):
        await restore(old.config, old.root, file, verify=False)
    new = make("new", "sqlite")
    await upgrade(new.config.database_url())
    before = (new.root.path / "milepost.db").read_bytes()
    with pytest.raises(TargetNotEmpty, match="exists already"):
        await restore(new.config, new.root, file, verify=False)
    assert (new.root.path / "milepost.db").read_bytes() == before
    assert old.blob(filled.blob).exists()


@pytest.mark.postgres
async def test_a_database_that_has_tables_is_refused(make: Make, tmp_path: Path) -> None:
    old = make("old", "sqlite")
    await upgrade(old.config.database_url())
    file = tmp_path / "backup.tar.gz"
    await back_up(old.config, old.root, file)
    new = make("new", "postgresql")
    await upgrade(new.config.database_url())
    with pytest.raises(TargetNotEmpty, match="database is not empty"):
        await restore(new.config, new.root, file, verify=False)


async def test_a_damaged_blob_is_left_out_and_named(make: Make, tmp_path: Path, project: Path) -> None:
    old = make("old", "sqlite")
    await upgrade(old.config.database_url())
    filled = await old.fill(project)
    old.blob(filled.blob).write_bytes(b"something else")
    file = tmp_path / "backup.tar.gz"
    done = await back_up(old.config, old.root, file)
    assert (done.blobs, done.damaged) == (0, [filled.blob.digest])
    new = make("new", "sqlite")
    found = await restore(new.config, new.root, file, verify=True)
    assert found.damaged_blobs == [filled.blob.digest]
    assert found.verification is not None and "is missing" in found.verification.findings[0].problem


async def test_nothing_is_left_of_a_backup_that_fails(
    make: Make, tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make("old", "sqlite")
    await upgrade(old.config.database_url())
    await old.fill(project)

    def full(*_arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(archive.ArchiveWriter, "finish", full)
    file = tmp_path / "backup.tar.gz"
    with pytest.raises(MilepostError, match="No space left"):
        await back_up(old.config, old.root, file)
    assert not file.exists()
    assert not list(old.root.snapshots.glob(".copy-*"))


@pytest.mark.parametrize("target", ["sqlite", pytest.param("postgresql", marks=POSTGRES)])
async def test_a_backup_of_an_earlier_schema_is_upgraded(make: Make, tmp_path: Path, target: str) -> None:
    old = make("old", "sqlite")
    await upgrade(old.config.database_url())
    async with old.ledger() as ledger:
        session = await Builder(ledger).session("Before")
        stored = await ledger.read(lambda tx: tx.events.read(session))
    file = tmp_path / "backup.tar.gz"
    await back_up(old.config, old.root, file)
    _rewritten(FIRST, lambda value: value | {"schema": "0001"}, tables=SCHEMA_1, events=_part_0001(stored))(file)
    new = make("new", target)
    found = await restore(new.config, new.root, file, verify=True)
    assert found.verification is not None and found.verification.findings == []
    assert found.opened == [session]
    async with new.ledger() as after:
        await after.check()
