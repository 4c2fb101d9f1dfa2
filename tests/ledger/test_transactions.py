"""Transactions: all or nothing, one at a time where it matters, snapshots for readers, faults by name."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from milepost.domain.errors import MilepostError, SchemaOutdated, SchemaTooNew, StorageUnavailable
from milepost.domain.events import RunStarted, StreamKind
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.storage import Hub, open_ledger
from tests.ledger.samples import connection, in_parallel, sql
from tests.support.databases import OpenLedger
from tests.support.postgres_server import run_apart

ROOT = Path(__file__).parents[2]


def _append(tx: LedgerTx, key: str, stream: str = "run_1") -> list[int]:
    return tx.events.append(stream, StreamKind.RUN, [NewEvent(key, RunStarted("r", "a", {}))], 1)


async def _keys(ledger: Ledger, stream: str = "run_1") -> list[str]:
    return [event.key for event in await ledger.read(lambda tx: tx.events.read(stream))]


async def test_a_body_that_raises_leaves_nothing(ledger: Ledger) -> None:
    def body(tx: LedgerTx) -> None:
        _append(tx, "lost")
        tx.leases.acquire("lease", "me", 1, 100)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await ledger.write(body)
    assert await _keys(ledger) == []
    assert await ledger.write(lambda tx: tx.leases.acquire("lease", "other", 1, 100))
    assert await ledger.write(lambda tx: _append(tx, "kept")) == [1]


async def test_bodies_that_raise_do_not_touch_the_others(ledger: Ledger) -> None:
    async def write(n: int) -> list[int]:
        def body(tx: LedgerTx) -> list[int]:
            seqs = _append(tx, f"k{n}")
            if n % 3 == 0:
                raise LookupError(n)
            return seqs

        return await ledger.write(body)

    results = await in_parallel(60, write)
    assert [type(results[n]) for n in range(0, 60, 3)] == [LookupError] * 20
    assert sorted(seq for n in range(60) if n % 3 for seq in results[n]) == list(range(1, 41))
    assert sorted(await _keys(ledger)) == sorted(f"k{n}" for n in range(60) if n % 3)


async def test_a_failed_statement_is_the_fault_of_its_body_only(ledger: Ledger) -> None:
    async def write(n: int) -> list[int]:
        def body(tx: LedgerTx) -> list[int]:
            seqs = _append(tx, f"k{n}")
            if n == 5:
                connection(tx).execute(text("INSERT INTO streams (stream_id) VALUES ('x')"))
            return seqs

        return await ledger.write(body)

    results = await in_parallel(12, write)
    assert [n for n, result in enumerate(results) if isinstance(result, Exception)] == [5]
    assert "k5" not in await _keys(ledger)
    assert len(await _keys(ledger)) == 11


async def test_a_raised_stop_iteration_reaches_the_caller(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await ledger.write(lambda tx: next(iter(())))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await ledger.read(lambda tx: next(iter(())))
    assert await ledger.write(lambda tx: _append(tx, "a")) == [1]


async def test_a_cancelled_wait_leaves_whole_transactions(ledger: Ledger) -> None:
    async def write(n: int) -> None:
        def body(tx: LedgerTx) -> None:
            _append(tx, f"k{n}", "run_a")
            _append(tx, f"k{n}", "run_b")

        await ledger.write(body)

    tasks = [asyncio.create_task(write(n)) for n in range(200)]
    for n, task in enumerate(tasks):
        if n % 2:
            task.cancel()
        if n % 20 == 0:
            await asyncio.sleep(0.002)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result for result in results[::2] if result is not None] == []
    first, second = await _keys(ledger, "run_a"), await _keys(ledger, "run_b")
    assert sorted(first) == sorted(second)
    assert {f"k{n}" for n in range(0, 200, 2)} <= set(first)
    assert await ledger.write(lambda tx: _append(tx, "after")) == [1]


async def test_a_cancelled_read_frees_its_place(ledger: Ledger) -> None:
    for _ in range(40):
        task = asyncio.create_task(ledger.read(lambda tx: tx.events.head("run_1")))
        await asyncio.sleep(0)
        task.cancel()
    async with asyncio.timeout(20):
        for _ in range(40):
            assert (await ledger.read(lambda tx: tx.events.head("run_1")))[0] == 0


async def test_a_read_is_one_snapshot(opened: OpenLedger) -> None:
    await opened.ledger.write(lambda tx: _append(tx, "before"))

    async def append_elsewhere() -> None:
        other = await open_ledger(opened.url, Hub())
        await other.write(lambda tx: _append(tx, "meanwhile"))
        await other.close()

    def body(tx: LedgerTx) -> tuple[int, int]:
        first = tx.events.head("run_1")[0]
        run_apart(append_elsewhere())
        return first, len(tx.events.read("run_1"))

    assert await opened.ledger.read(body) == (1, 1)
    assert await _keys(opened.ledger) == ["before", "meanwhile"]


async def test_what_is_written_is_read(ledger: Ledger) -> None:
    for n in range(30):
        await ledger.write(lambda tx, n=n: _append(tx, f"k{n}"))
        assert len(await _keys(ledger)) == n + 1


@pytest.mark.parametrize("write", ["INSERT INTO leases VALUES ('a', '', 1)", "DELETE FROM leases", None])
async def test_a_read_refuses_to_write(ledger: Ledger, write: str | None) -> None:
    def body(tx: LedgerTx) -> object:
        if write is None:
            return _append(tx, "k")
        return connection(tx).exec_driver_sql(write)

    with pytest.raises(MilepostError, match="read transaction tried to write") as error:
        await ledger.read(body)
    assert error.value.code == "internal"
    assert await ledger.write(lambda tx: _append(tx, "k")) == [1]


async def test_a_closed_ledger_says_so(opened: OpenLedger) -> None:
    waiting = [asyncio.create_task(opened.ledger.write(lambda tx, n=n: _append(tx, f"k{n}"))) for n in range(5)]
    await asyncio.sleep(0)
    await opened.ledger.close()
    assert sorted(seq for seqs in await asyncio.gather(*waiting) for seq in seqs) == [1, 2, 3, 4, 5]
    for use in (opened.ledger.write, opened.ledger.read):
        with pytest.raises(StorageUnavailable, match="closed"):
            await use(lambda tx: tx.events.head("run_1"))
    await opened.ledger.close()


async def test_check(opened: OpenLedger) -> None:
    await opened.ledger.check()
    sql(opened.url, "UPDATE ledger_schema SET version_num = '9999'")
    with pytest.raises(SchemaTooNew, match="9999"):
        await opened.ledger.check()
    sql(opened.url, "DELETE FROM ledger_schema")
    with pytest.raises(SchemaOutdated, match="no ledger yet"):
        await opened.ledger.check()


# --- SQLite's group commit --------------------------------------------------------------------------------------


class _Gate:
    """Holds the writer thread in a body, so that what is submitted meanwhile becomes one group."""

    def __init__(self, ledger: Ledger) -> None:
        self._open = threading.Event()
        self._entered = threading.Event()
        self._task = asyncio.create_task(ledger.write(self._wait))

    def _wait(self, _tx: LedgerTx) -> None:
        self._entered.set()
        assert self._open.wait(30)

    async def closed(self) -> None:
        assert await asyncio.to_thread(self._entered.wait, 30)

    async def open(self) -> None:
        self._open.set()
        await self._task


async def test_one_commit_serves_a_group(sqlite_ledger: Ledger, sqlite_url: str) -> None:
    gate = _Gate(sqlite_ledger)
    await gate.closed()
    done: list[int] = []

    def body(tx: LedgerTx, n: int) -> int:
        seen = sql(sqlite_url, "SELECT count(*) FROM events")  # by another connection: what is committed
        done.append(seen[0][0])
        return _append(tx, f"k{n}")[0]

    tasks = [asyncio.create_task(sqlite_ledger.write(lambda tx, n=n: body(tx, n))) for n in range(10)]
    await asyncio.sleep(0)
    await gate.open()
    assert await asyncio.gather(*tasks) == list(range(1, 11))
    assert done == [0] * 10


async def test_a_cancelled_body_of_a_group_does_not_run(sqlite_ledger: Ledger) -> None:
    gate = _Gate(sqlite_ledger)
    await gate.closed()
    tasks = [asyncio.create_task(sqlite_ledger.write(lambda tx, n=n: _append(tx, f"k{n}"))) for n in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await gate.open()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[::2] == [[1], [2]]
    assert isinstance(results[1], asyncio.CancelledError)
    assert await _keys(sqlite_ledger) == ["k0", "k2", "k3"]


async def test_a_failed_commit_fails_the_whole_group(sqlite_ledger: Ledger) -> None:
    gate = _Gate(sqlite_ledger)
    await gate.closed()

    def poison(tx: LedgerTx) -> None:
        driver = connection(tx)
        driver.exec_driver_sql("PRAGMA defer_foreign_keys = ON")  # checked by COMMIT only
        driver.exec_driver_sql("INSERT INTO workspaces VALUES ('w', x'', 'd', 1)")
        driver.exec_driver_sql(
            "INSERT INTO sessions VALUES ('s', 'no such workspace', x'', 'single', 'active', x'', NULL, 1, NULL)"
        )

    bodies = [lambda tx: _append(tx, "k0"), poison, lambda tx: _append(tx, "k1")]
    tasks = [asyncio.create_task(sqlite_ledger.write(body)) for body in bodies]
    await asyncio.sleep(0)
    await gate.open()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [StorageUnavailable] * 3
    assert len({id(result) for result in results}) == 3
    assert await _keys(sqlite_ledger) == []
    assert await sqlite_ledger.write(lambda tx: _append(tx, "k2")) == [1]  # the writer goes on


async def test_a_group_that_loses_its_transaction_fails_as_one(sqlite_ledger: Ledger) -> None:
    gate = _Gate(sqlite_ledger)
    await gate.closed()

    def breaks(tx: LedgerTx) -> None:
        connection(tx).exec_driver_sql("ROLLBACK")  # as SQLite itself does on some faults
        raise LookupError

    bodies = [lambda tx: _append(tx, "k0"), breaks, lambda tx: _append(tx, "k1")]
    tasks = [asyncio.create_task(sqlite_ledger.write(body)) for body in bodies]
    await asyncio.sleep(0)
    await gate.open()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [StorageUnavailable] * 3
    assert await _keys(sqlite_ledger) == []


async def test_readers_go_on_while_a_writer_works(sqlite_ledger: Ledger) -> None:
    await sqlite_ledger.write(lambda tx: _append(tx, "k0"))
    gate = _Gate(sqlite_ledger)
    await gate.closed()
    async with asyncio.timeout(20):
        assert await _keys(sqlite_ledger) == ["k0"]
    await gate.open()


async def test_a_lock_of_another_process_is_waited_for(sqlite_ledger: Ledger, sqlite_url: str) -> None:
    held = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    held.execute("BEGIN IMMEDIATE")
    task = asyncio.create_task(sqlite_ledger.write(lambda tx: _append(tx, "k0")))
    done, _ = await asyncio.wait([task], timeout=0.3)
    assert not done
    held.execute("COMMIT")
    held.close()
    assert await task == [1]


async def test_a_lock_held_too_long_is_unavailable(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost.storage.sqlite.BUSY_TIMEOUT_MS", 100)
    ledger = await open_ledger(sqlite_url, Hub())
    held = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageUnavailable, match="another process holds its lock") as error:
        await ledger.write(lambda tx: _append(tx, "k0"))
    assert error.value.fix
    held.execute("ROLLBACK")
    held.close()
    assert await ledger.write(lambda tx: _append(tx, "k1")) == [1]
    await ledger.close()


FULL_DISK = """
import asyncio, os, resource, sys
from pathlib import Path
from milepost.domain.errors import StorageUnavailable
from milepost.domain.events import RunStarted, StreamKind
from milepost.ports.ledger import NewEvent
from milepost.storage import Hub, open_ledger

async def main(url):
    ledger = await open_ledger(url, Hub())
    def body(tx, n):
        new = NewEvent(f"k{n}", RunStarted("r", os.urandom(10_000).hex(), {}))
        return tx.events.append("run_1", StreamKind.RUN, [new], 1)
    write = lambda n: ledger.write(lambda tx: body(tx, n))
    await write(0)
    wal = Path(url.removeprefix("sqlite:///") + "-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size + 200_000, resource.RLIM_INFINITY))
    results = []
    for round in range(6):
        results += await asyncio.gather(*(write(1 + round * 5 + n) for n in range(5)), return_exceptions=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    failed = [result for result in results if isinstance(result, Exception)]
    assert failed and len(failed) < len(results), results
    assert {type(error) for error in failed} == {StorageUnavailable}, failed
    assert all("disk" in error.fix for error in failed), failed
    kept = ["k0"] + [f"k{n + 1}" for n, result in enumerate(results) if not isinstance(result, Exception)]
    assert [event.key for event in await ledger.read(lambda tx: tx.events.read("run_1"))] == kept
    await write(100)
    await ledger.check()
    await ledger.close()

asyncio.run(main(sys.argv[1]))
"""


def test_a_full_disk_fails_whole_transactions_and_passes(sqlite_url: str) -> None:
    """In a process whose files may not grow: the disk is full at the commit, then has space again."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, sqlite_url], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


async def test_a_full_database_inside_a_statement(sqlite_ledger: Ledger) -> None:
    def shrink(tx: LedgerTx) -> None:
        pages = connection(tx).exec_driver_sql("PRAGMA page_count").scalar_one()
        connection(tx).exec_driver_sql(f"PRAGMA max_page_count = {pages + 3}")

    await sqlite_ledger.write(shrink)
    big = NewEvent("big", RunStarted("r", os.urandom(250_000).hex(), {}))
    with pytest.raises(StorageUnavailable, match="disk is full") as error:
        await sqlite_ledger.write(lambda tx: tx.events.append("run_1", StreamKind.RUN, [big], 1))
    assert error.value.retryable
    assert await _keys(sqlite_ledger) == []
    assert await sqlite_ledger.write(lambda tx: _append(tx, "small")) == [1]  # on a connection made anew
