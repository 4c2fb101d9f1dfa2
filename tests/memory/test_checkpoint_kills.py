"""A process that is killed at any step of writing a checkpoint leaves those that were there, whole."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from milepost.domain.checkpoints import KEPT
from milepost.ledger.checkpoint import read_checkpoint
from milepost.memory.checkpoint_files import CheckpointFiles
from tests.memory.killed_writer import KEY, content

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
        "store = CheckpointFiles(Path(sys.argv[1])); print('ready', flush=True)\n"
        "for seq in range(int(sys.argv[2]), 10**6): store.write(KEY, seq, content(seq))"
    )
    newest = 0
    for round_ in range(8):
        words = [sys.executable, "-c", code, str(tmp_path), str(newest + 1)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            time.sleep(0.02 + 0.013 * round_)
            process.kill()
        found = _readable(tmp_path)
        assert found and found[0] >= newest and len(found) <= KEPT + 1
        newest = found[0]
    assert newest > 8
