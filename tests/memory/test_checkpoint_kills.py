"""A process that is killed at any step of writing a checkpoint leaves those that were there, whole."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from activities.conversation import Conversations
from milepost.domain.checkpoints import KEPT
from milepost.domain.turns import TurnState
from milepost.ledger.checkpoint import read_checkpoint
from milepost.memory.checkpoint_files import CheckpointFiles
from milepost.services.contents import Contents
from milepost.services.finishing import Ending, end_turn
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from tests.memory.killed_writer import KEY, content
from tests.support.driven import AGENT, Driver

STEPS = [
    ("mkdir", 1),
    ("open", 1),
    ("open", -1),
    ("half", 1),
    ("fsync", 1),
    ("fsync", -1),
    ("replace", 1),
    ("replace", -1),
    ("fsync", 2),
    ("fsync", -2),
    ("unlink", 1),
    ("unlink", -1),
]


def _write(folder: Path, seq: int, step: str = "none", count: int = 0) -> int:
    words = [sys.executable, "-m", "tests.memory.killed_writer", str(folder), str(seq), step, str(count)]
    return subprocess.run(words, timeout=60, check=False).returncode


def _readable(folder: Path) -> list[int]:
    """Positions of the checkpoints, newest first; each must be whole and its own."""
    store = CheckpointFiles(folder)
    found = []
    for file in store.files(KEY):
        data = store.read(file)
        read_checkpoint(data)
        assert data == content(file.seq)
        found.append(file.seq)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("step", "count"), STEPS)
def test_killed_at_a_step(tmp_path: Path, step: str, count: int) -> None:
    store = CheckpointFiles(tmp_path)
    for seq in (1, 2, 3):
        store.write(KEY, seq, content(seq))
    assert _write(tmp_path, 4, step, count) == -signal.SIGKILL
    left = _readable(tmp_path)
    assert left[:2] in ([4, 3], [3, 2]) and len(left) >= KEPT
    # The next one goes on as if nothing had happened, and what was left half is found.
    store.write(KEY, 5, content(5))
    assert _readable(tmp_path)[0] == 5 and len(_readable(tmp_path)) == KEPT
    leftovers = list(store.leftovers(time.time() + 60))
    half_written = {("open", -1), ("half", 1), ("fsync", 1), ("fsync", -1), ("replace", 1)}
    assert len(leftovers) == int((step, count) in half_written)


def test_killed_half_way(tmp_path: Path) -> None:
    CheckpointFiles(tmp_path).write(KEY, 1, content(1))
    assert _write(tmp_path, 2, "half", 1) == -signal.SIGKILL
    assert _readable(tmp_path) == [1]
    assert _write(tmp_path, 2) == 0
    assert _readable(tmp_path) == [2, 1]


@pytest.mark.slow
def test_killed_at_any_time(tmp_path: Path) -> None:
    """Writers are killed after some milliseconds of writing one after another."""
    code = (
        "import sys; from pathlib import Path; from tests.memory.killed_writer import *\n"
        "store = CheckpointFiles(Path(sys.argv[1]))\n"
        "for seq in range(int(sys.argv[2]), 10**6): store.write(KEY, seq, content(seq)); print(seq, flush=True)"
    )
    newest = 0
    for round_ in range(6):
        words = [sys.executable, "-c", code, str(tmp_path), str(newest + 1)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            told = [int(process.stdout.readline()) for _ in range(3 + round_)]
            time.sleep(0.0007 * round_)
            process.kill()
        found = _readable(tmp_path)
        assert found and found[0] >= told[-1] and len(found) <= KEPT + 1
        newest = found[0]


@pytest.mark.slow
async def test_a_process_is_killed_between_the_ledger_and_its_checkpoints(sqlite_url: str, tmp_path: Path) -> None:
    """Turns and rewinds in a process that is killed at any time: the next one gets what the ledger says."""
    notifier = await open_notifier(sqlite_url)
    ledger = await open_ledger(sqlite_url, notifier)
    store = CheckpointFiles(tmp_path / "checkpoints" / "v1")
    session = await Driver(ledger, notifier, tmp_path, lambda: 10).open()
    used = 0
    for round_ in range(3):
        words = [sys.executable, "-m", "tests.memory.driven_turns", sqlite_url, str(tmp_path), session, str(round_)]
        await asyncio.to_thread(_killed_after, words, 8 + round_, 0.003 * round_)
        running = await ledger.read(lambda tx: tx.turns.running(session))
        if running is not None:
            ending = Ending(TurnState.INTERRUPTED, "killed")
            now = running.created_at + 1
            await ledger.write(lambda tx: end_turn(tx, tx.turns.get(running.turn_id), ending, now))  # noqa: B023
        with_files = Driver(ledger, notifier, tmp_path, lambda: 10, seed=100 + round_, checkpoints=store)
        turn = await with_files.begin(session)
        await with_files.prepare(session, turn)
        found = await with_files.conversations.whole(turn, AGENT, 1)
        plain = await Conversations(ledger, Contents(FileBlobStore(tmp_path / "blobs"))).whole(turn, AGENT, 1)
        assert found.messages == plain.messages and found.notes == ()
        assert found.earlier is not None
        used += len(found.earlier.segments) - found.earlier.read
        await with_files.answer(session, turn)
        await with_files.conversations.close()
    assert used > 6, "turns came from checkpoints"
    assert await ledger.read(lambda tx: tx.rewinds.of_session(session)), "and there were rewinds"
    await ledger.close()
    await notifier.close()


def _killed_after(words: list[str], lines: int, seconds: float) -> None:
    """Kill the process some time after it has told of so many turns."""
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert all(process.stdout.readline() for _ in range(lines))
        time.sleep(seconds)
        process.kill()
