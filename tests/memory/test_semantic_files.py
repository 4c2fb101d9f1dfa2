"""Semantic memory in files: private, whole after every kill, and what is forgotten is overwritten."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.domain.errors import MemoryDamaged, MemoryUnavailable
from milepost.domain.memory import Scope
from milepost.domain.semantic import AddOutcome
from milepost.embedders.minilm.embedder import PackagedMiniLM, installed
from milepost.memory.semantic import IndexedMemory
from milepost.storage.semantic_files import FILE_NAME
from tests.memory.semantic_support import ANN, Embedding, file_store, found, said
from tests.support.needs import unavailable

ROOT = Path(__file__).parents[2]


def _file(root: Path, scope: Scope = ANN) -> Path:
    return root / "memory" / "semantic" / "v1" / scope.component / FILE_NAME


async def test_files_are_private(tmp_path: Path) -> None:
    root = tmp_path / "home"
    memory = IndexedMemory(file_store(root), Embedding())
    await memory.search(ANN, "nothing")
    await memory.page(ANN)
    assert not root.exists()  # looking makes nothing
    await memory.add(ANN, [said(1, "A secret.")])
    for path in root.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert (await memory.stats(ANN)).bytes > 4096
    await memory.close()
    with pytest.raises(MemoryUnavailable):
        await memory.search(ANN, "secret")


async def test_what_is_forgotten_is_overwritten(tmp_path: Path) -> None:
    memory = IndexedMemory(file_store(tmp_path), Embedding())
    entries = [said(number, f"Line {number} with the word canary{number}.") for number in range(50)]
    await memory.add(ANN, entries)
    assert any(b"canary7" in path.read_bytes() for path in _file(tmp_path).parent.iterdir())
    await memory.forget(ANN, ["e7"], "a person")
    for path in _file(tmp_path).parent.iterdir():
        assert b"canary7" not in path.read_bytes(), path
    await memory.close()


async def test_damaged_and_later_files(tmp_path: Path) -> None:
    memory = IndexedMemory(file_store(tmp_path), Embedding())
    await memory.add(ANN, [said(1, "x")])
    await memory.close()
    path = _file(tmp_path)
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    later = IndexedMemory(file_store(tmp_path), Embedding())
    with pytest.raises(MemoryUnavailable, match="later release"):
        await later.add(ANN, [said(2, "y")])
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(MemoryDamaged, match=r"memory\.db cannot be used: the file is not an SQLite database"):
        await IndexedMemory(file_store(tmp_path), Embedding()).search(ANN, "x")
    path.unlink()
    path.mkdir()
    with pytest.raises(MemoryUnavailable):
        await IndexedMemory(file_store(tmp_path), Embedding()).add(ANN, [said(1, "x")])


async def test_open_files_are_bounded(tmp_path: Path) -> None:
    store = file_store(tmp_path, max_open=3)
    memory = IndexedMemory(store, Embedding())
    scopes = [Scope.agent("ses_1", f"agent{number}") for number in range(12)]
    await asyncio.gather(*(memory.add(scope, [said(1, f"I am {scope.owner}.")]) for scope in scopes))
    await asyncio.gather(*(memory.search(scope, "agent") for scope in scopes))
    assert len(store._open) <= 3
    assert [(await memory.page(scope))[0].text for scope in scopes] == [f"I am {scope.owner}." for scope in scopes]
    await memory.close()


async def test_a_file_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    memory = IndexedMemory(file_store(tmp_path), Embedding())
    await memory.add(ANN, [said(1, "one")])
    other = sqlite3.connect(_file(tmp_path), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    adding = asyncio.create_task(memory.add(ANN, [said(2, "two")]))
    assert (await memory.search(ANN, "one")).searched == 1  # reading goes on
    await asyncio.sleep(0.3)
    assert not adding.done()
    other.execute("ROLLBACK")
    other.close()
    assert [item.outcome for item in await adding] == [AddOutcome.STORED]
    await memory.close()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", "d"]), st.sampled_from(["It rains.", "it  RAINS", "It snows.", "Hm"])
        ),
        max_size=12,
    )
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_adding_twice_changes_nothing(entries: list[tuple[str, str]]) -> None:
    async def run(root: Path) -> None:
        memory = IndexedMemory(file_store(root), Embedding())
        added = [said(number, text, id=name) for number, (name, text) in enumerate(entries)]
        for entry in added:
            await memory.add(ANN, [entry])
        once = await memory.page(ANN)
        results = await memory.add(ANN, added)
        assert {item.outcome for item in results} <= {AddOutcome.KNOWN}
        assert await memory.page(ANN) == once
        first = dict(reversed(entries))  # an id keeps its first text
        assert len(once) == len({text.casefold().strip(".").replace("  ", " ") for text in first.values()})
        assert sorted(source.entry_id for record in once for source in record.sources) == sorted(first)
        await memory.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("what", ["add", "forget", "reindex"])
async def test_a_kill_at_any_step_loses_nothing(tmp_path: Path, what: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.memory.semantic_killed", str(tmp_path), what),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no threads before a fork
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    lines = [line.split() for line in output.decode().splitlines()]
    rounds = max(int(path.name) for path in tmp_path.glob("[0-9]*"))  # noqa: ASYNC240
    assert rounds > 5
    for number in range(1, rounds + 1):
        kept = {record for at, sign, record in lines if int(at) == number and sign == "+"}
        gone = {record for at, sign, record in lines if int(at) == number and sign == "-"}
        await _check(tmp_path / str(number), kept, gone)


async def _check(root: Path, kept: set[str], gone: set[str]) -> None:
    with sqlite3.connect(_file(root)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        [(space,)] = raw.execute("SELECT embedder FROM semantic_owners").fetchall()
    raw.close()
    memory = IndexedMemory(file_store(root), Embedding(space.decode()))
    ids = {record.id for record in await memory.page(ANN, limit=1000)}
    assert ids >= {"e1", "e3"} | kept - gone
    assert not gone & ids
    recall = await memory.search(ANN, "what is told", limit=100)
    assert recall.searched == len(ids)
    assert recall.incomplete == 0  # what waited for its vector got it now
    for record in ids:
        assert record in await found(memory, ANN, (await memory.get(ANN, record)).text, limit=3)
    await memory.close()


CONVERSATION = [
    "Please set up a FastAPI project with SQLite.",
    "I created app.py, models.py and a SQLite file data.db.",
    "Use tabs, not spaces.",
    "Done: all files use tabs now.",
    "The deployment target is a Raspberry Pi in my garage.",
    "Noted; I will build for arm64.",
    "My daughter Mia will use the app for her piano practice log.",
    "Nice! I added a practice table.",
    "Why does the test fail?",
    "The fixture closed the session too early; fixed.",
]
ASKED = {
    "What hardware do we deploy to?": {5, 6},
    "Who is the app for?": {7},
    "piano": {7},
    "Fix the failing test": {9, 10},
}
OFF_TOPIC = ("hello", "continue", "thanks", "What is the capital of France?", "Write a haiku about autumn")


async def test_a_young_memory_recalls_what_fits_and_nothing_else(tmp_path: Path) -> None:
    if not installed():
        unavailable("The packaged MiniLM", "the extra onnx is not installed")
    embedder = PackagedMiniLM(threads=1, seconds=60, load_seconds=60)
    memory = IndexedMemory(file_store(tmp_path), embedder)
    speakers = ("user", "agent")
    await memory.add(
        ANN, [said(n, text, speaker=speakers[(n + 1) % 2]) for n, text in enumerate(CONVERSATION, start=1)]
    )
    for query, turns in ASKED.items():
        assert (await memory.search(ANN, query)).items[0].turn_number in turns, query
    for query in OFF_TOPIC:
        assert (await memory.search(ANN, query)).items == (), query
    await memory.close()
    await embedder.close()
