"""Which files the embedded Temporal server gets again, which are put aside, and that nothing is lost of those."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from milepost.domain.errors import TemporalUnavailable
from milepost.temporal.client import connect
from milepost.temporal.dev_server import DevServer
from milepost.temporal.store import Store

pytestmark = pytest.mark.slow

SOON = timedelta(seconds=5)


@asynccontextmanager
async def serving(store: Path) -> AsyncIterator[tuple[DevServer, Client]]:
    server = DevServer(store, store.with_name("log"))
    try:
        # A namespace that the file has wherever it lies.
        yield server, await connect(replace(await server.start(), namespace="default"))
    finally:
        await server.stop()


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A store with a workflow in it."""
    path = tmp_path_factory.mktemp("used") / "temporal.db"

    async def use() -> None:
        async with serving(path) as (_, client):
            await client.start_workflow("Waits", id="kept", task_queue="nobody")

    asyncio.run(use())
    return path.read_bytes()


async def knows(client: Client, workflow_id: str = "kept") -> bool:
    try:
        await client.get_workflow_handle(workflow_id).describe(rpc_timeout=SOON)
    except RPCError:
        return False
    return True


def archived(folder: Path) -> list[Path]:
    return sorted(folder.glob("temporal.db.unreadable-*"))


def _statement(text: str) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        connection = sqlite3.connect(store)
        with connection:
            connection.execute(text)
        connection.close()

    return change


DAMAGES: dict[str, Callable[[Path], object]] = {
    "an empty file": lambda store: store.write_bytes(b""),
    "a cut file": lambda store: os.truncate(store, 20_000),
    "a file with a hole": lambda store: store.write_bytes(
        store.read_bytes()[:200_000] + b"\xff" * 200_000 + store.read_bytes()[400_000:]
    ),
    "a table that an older release did not have": _statement("ALTER TABLE chasm_node_maps RENAME TO nobody_knows"),
}


async def test_a_file_the_server_cannot_work_with_is_put_aside(used: bytes, tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as together:
        for number, damage in enumerate(DAMAGES.values()):
            store = tmp_path / str(number) / "temporal.db"
            store.parent.mkdir()
            store.write_bytes(used)
            damage(store)
            together.create_task(_put_aside(store))


async def _put_aside(store: Path) -> None:
    folder = store.parent
    async with serving(store) as (_, client):
        assert not await knows(client)
        await client.start_workflow("Waits", id="new", task_queue="nobody", rpc_timeout=SOON)
    assert len(archived(folder)) == 1
    async with serving(store) as (_, client):
        assert await knows(client, "new"), "the fresh one is kept"
    assert len(archived(folder)) == 1


async def test_a_sound_file_is_kept_also_after_a_crash(used: bytes, tmp_path: Path) -> None:
    store = tmp_path / "temporal.db"
    store.write_bytes(used)
    _statement("ALTER TABLE executions ADD COLUMN something_new TEXT")(store)
    async with serving(store) as (server, client):
        assert await knows(client)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
    async with serving(store) as (_, client):
        assert await knows(client)
    assert archived(tmp_path) == []


async def test_a_file_that_goes_bad_while_the_server_is_away_is_put_aside_too(used: bytes, tmp_path: Path) -> None:
    store = tmp_path / "temporal.db"
    store.write_bytes(used)
    async with serving(store) as (server, client):
        first = server.pid
        assert first is not None
        store.write_bytes(b"no database " * 1_000)
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(60):
            while server.pid in (first, None) or not archived(tmp_path):
                await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            while not await _starts(client):
                await asyncio.sleep(0.1)


async def _starts(client: Client) -> bool:
    try:
        await client.start_workflow("Waits", id="again", task_queue="nobody", rpc_timeout=SOON)
    except RPCError:
        return False
    return True


async def test_what_says_nothing_against_the_file_leaves_it_alone(used: bytes, tmp_path: Path) -> None:
    """A folder in its place cannot be opened, and putting it aside would help nobody."""
    (tmp_path / "temporal.db").mkdir()
    with pytest.raises(TemporalUnavailable, match="unable to open database file"):
        async with serving(tmp_path / "temporal.db"):
            pass
    assert (tmp_path / "temporal.db").is_dir() and archived(tmp_path) == []


@pytest.mark.parametrize("said", ["database is locked (5) (SQLITE_BUSY)", "database or disk is full (13)", "", None])
def test_a_locked_file_and_a_full_disk_are_no_complaints(said: str | None, tmp_path: Path) -> None:
    log = tmp_path / "log"
    if said is not None:
        log.write_text(said)
    assert not Store(tmp_path / "temporal.db", log).is_refused()
    log.write_text(f"{said}\nError: file is not a database (26)\n")
    assert Store(tmp_path / "temporal.db", log).is_refused()


def test_files_that_were_put_aside_are_never_replaced(tmp_path: Path) -> None:
    store = Store(tmp_path / "temporal.db", tmp_path / "log")
    for number in range(3):
        store.path.write_bytes(bytes([number]))
        store.path.with_name("temporal.db-journal").write_bytes(bytes([number]))
        store.archive()
    kept = [path for path in archived(tmp_path) if not path.name.endswith("-journal")]
    assert sorted(path.read_bytes() for path in kept) == [b"\0", b"\1", b"\2"]
    assert all(path.with_name(path.name + "-journal").read_bytes() == path.read_bytes() for path in kept)
    assert not store.exists()


def test_what_a_deleted_file_left_beside_it_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path / "temporal.db", tmp_path / "log")
    for suffix in ("-journal", "-wal", "-shm"):
        store.path.with_name(f"temporal.db{suffix}").write_bytes(b"old")
    assert not store.exists()
    assert list(tmp_path.iterdir()) == []
