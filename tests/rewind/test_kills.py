"""Processes that are killed while they rewind or fork with files, and what the next one makes of it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from milepost.bootstrap.system import SystemClock
from milepost.domain.events import WorkspaceRestored
from milepost.domain.forks import ForkState
from milepost.domain.sessions import SessionStatus
from milepost.ledger.codec import decode_event
from milepost.services.forking import LEFT_ALONE_US, ForkCopier
from milepost.services.workspaces import WorkspaceGuard
from tests.rewind.conftest import Bench
from tests.support.databases import OpenLedger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
FEW, MANY = 20, 300
"""Files of the Workspace; many, so that somebody can be killed among them."""

KILLED = -signal.SIGKILL


@pytest.fixture
def ledger_url(sqlite_url: str) -> str:
    """What a start does at once on SQLite, where nobody else can be at work."""
    return sqlite_url


class Later(SystemClock):
    """The time at which what a killed process left is taken up."""

    def now(self) -> int:
        return super().now() + 2 * LEFT_ALONE_US


async def start(opened: OpenLedger, root: Path, step: str, **act: object) -> asyncio.subprocess.Process:
    arguments = (opened.url, str(root), step, json.dumps(act))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.rewind.killed", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )


async def written(bench: Bench, files: int = FEW) -> str:
    """A turn that writes many files, and one that changes, removes and adds some."""
    session = await bench.open()
    await bench.writes(session, lambda: fill(bench, "first", files))
    await bench.writes(session, lambda: fill(bench, "second", files), bench.write("added", "new"), bench.remove("d/7"))
    return session


def fill(bench: Bench, word: str, files: int) -> None:
    for number in range(files):
        bench.write(f"d/{number}", f"{word} {number}")()


def expected(files: int = FEW) -> dict[str, str]:
    return {f"d/{number}": f"first {number}" for number in range(files)}


async def next_start(bench: Bench) -> None:
    """What a process does that alone may use the ledger, when it starts."""
    await bench.ledger.write(lambda tx: tx.workspaces.forget_operations())
    await WorkspaceGuard(bench.ledger, SystemClock(), bench.snapshots, "next").repair_all()


async def repaired(bench: Bench, session: str, files: int = FEW) -> None:
    assert bench.files() == expected(files)
    assert await bench.ledger.read(lambda tx: tx.workspaces.restores()) == []
    stored = await bench.ledger.read(lambda tx: tx.events.read(session))
    events = [decode_event(item.type, item.version, item.payload) for item in stored]
    restored = [event for event in events if isinstance(event, WorkspaceRestored)]
    assert len(restored) == 1 and restored[0].error is None and restored[0].kept == restored[0].failed == ()
    (live,) = (await bench.history.page(session)).entries
    assert live.turn.number == 1
    assert await bench.verified() == []


@pytest.mark.parametrize("step", ["restore:1", "take:3"])
async def test_a_rewind_that_is_killed_between_ledger_and_files(
    opened: OpenLedger, bench: Bench, tmp_path: Path, step: str
) -> None:
    session = await written(bench)
    process = await start(opened, tmp_path, step, do="rewind", session=session, number=1)
    assert await process.wait() == KILLED
    assert len(await bench.rewinds.page(session)) == 1
    await next_start(bench)
    await repaired(bench, session)


async def test_a_rewind_that_is_killed_while_files_are_written(
    opened: OpenLedger, bench: Bench, tmp_path: Path
) -> None:
    """Git may go on writing for a moment, since nobody told it; the repair has the last word."""
    session = await written(bench, MANY)
    process = await start(opened, tmp_path, "-", do="rewind", session=session, number=1)
    async with asyncio.timeout(120):
        while not any(text.startswith("first") for text in readable(bench)):
            await asyncio.sleep(0.001)
    process.kill()
    await process.wait()
    await next_start(bench)
    await asyncio.sleep(1)
    await repaired(bench, session, MANY)


def readable(bench: Bench) -> list[str]:
    """The texts of some files; one may be gone for the moment."""
    texts = []
    for number in (0, 1, MANY - 1):
        try:
            texts.append((bench.folder / "d" / str(number)).read_text())
        except OSError:
            continue
    return texts


@pytest.mark.parametrize("step", ["export:1", "take:1"])
async def test_a_fork_that_is_killed_between_ledger_and_files(
    opened: OpenLedger, bench: Bench, tmp_path: Path, step: str
) -> None:
    session = await written(bench)
    folder = tmp_path / "fork"
    before = await bench.ledger.read(lambda tx: tx.events.head(session))
    process = await start(opened, tmp_path, step, do="fork", session=session, number=1, folder=str(folder))
    assert await process.wait() == KILLED
    fork = (await bench.sessions.page(limit=1))[0]
    assert fork.session_id != session and fork.status is SessionStatus.CLOSED
    await ForkCopier(bench.ledger, Later(), bench.snapshots).carry_on_all()
    done = await bench.ledger.read(lambda tx: tx.forks.get(fork.session_id))
    assert done is not None and (done.state, done.copied) == (ForkState.DONE, 1)
    assert (await bench.sessions.get(fork.session_id)).status is SessionStatus.ACTIVE
    found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert found == expected()
    # The source has nothing of it.
    assert await bench.ledger.read(lambda tx: tx.events.head(session)) == before
    assert bench.files()["added"] == "new" and await bench.verified() == []
