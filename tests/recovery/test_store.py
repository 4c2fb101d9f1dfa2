"""History outlives Temporal's store: deleted, damaged, of another release. What ran is interrupted, new turns run."""

from __future__ import annotations

import shutil
import signal
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import NO_TOOLS, SECONDS, Milepost, running
from tests.security.instances import Instance

SHORT = 'responses: [{text: "All is well."}]'
LONG = 'responses: [{text: "' + "word " * 2_000 + '", delay: 0.05}]'


@dataclass(frozen=True)
class Left:
    """What a killed instance left: a Session with a turn that had ended, and one with a turn in mid-answer."""

    home: Path
    ended_session: str
    ended_history: list[Any]
    running_session: str
    running_turn: str
    streamed: str


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    made = _instance(tmp_path_factory.mktemp("left"))
    with running(made, "dev") as process, Instance(made) as instance:
        quiet = instance.open(made.folder)
        assert instance.ended(instance.begin(quiet, script=SHORT))["state"] == "completed"
        busy = instance.open(made.folder)
        turn = instance.begin(busy, "Count the words", script=LONG)
        streamed = instance.first_text(busy)
        history = _recorded(instance, quiet)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=SECONDS)
    assert (made.home / "temporal.db").exists()
    # Without an instance, History is read from the ledger alone.
    shown = made.run("history", busy, "--json").json()["turns"]
    assert [(turn["state"], turn["request"]) for turn in shown] == [("running", "Count the words")]
    return Left(made.home, quiet, history, busy, turn, streamed)


def _recorded(instance: Instance, session: str) -> list[Any]:
    """The History of a Session without where its workflows can be looked at: the port of Temporal's UI changes."""
    return [turn | {"temporal_url": None, "links": None} for turn in instance.history(session)]


def _instance(folder: Path) -> Milepost:
    (folder / "project").mkdir()
    made = Milepost(folder / "home", folder / "project")
    made.configure(NO_TOOLS)
    return made


def _remove(store: Path) -> None:
    """Deleted, but for what SQLite left beside it."""
    store.unlink()
    store.with_name(store.name + "-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0" * 504)


def _fill_with_garbage(store: Path) -> None:
    store.write_bytes(b"This has never been a database. " * 2_000)


def _rename_a_column(store: Path) -> None:
    """As a release leaves it whose tables have other columns. The server opens it without a complaint."""
    with sqlite3.connect(store) as connection:
        connection.execute("ALTER TABLE executions RENAME COLUMN state TO state_v2")
    connection.close()


DAMAGES: dict[str, tuple[Callable[[Path], None], bytes | None]] = {
    "deleted": (_remove, None),
    "garbage": (_fill_with_garbage, b"This has never been a database."),
    "of another release": (_rename_a_column, b"state_v2"),
}
"""What happened to the store, and by what the archived file can be known, if there is one."""


@pytest.mark.slow
def test_history_goes_on_whatever_happened_to_the_store(left: Left, tmp_path: Path) -> None:
    with ThreadPoolExecutor(len(DAMAGES)) as threads:
        started = {name: threads.submit(_go_on, left, tmp_path / str(n), name) for n, name in enumerate(DAMAGES)}
        failures = {name: error for name, future in started.items() if (error := future.exception()) is not None}
    assert failures == {}


def _go_on(left: Left, folder: Path, name: str) -> None:
    folder.mkdir()
    made = _instance(folder)
    shutil.copytree(left.home, made.home, ignore=shutil.ignore_patterns("*.sock", "instance.json"))
    damage, mark = DAMAGES[name]
    store = made.home / "temporal.db"
    damage(store)
    with running(made, "dev"), Instance(made) as instance:
        assert _recorded(instance, left.ended_session) == left.ended_history
        interrupted = instance.ended(left.running_turn)
        assert interrupted["state"] == "interrupted"
        assert "not found in Temporal" in interrupted["error"]["message"]
        output = instance.output(left.running_turn)
        assert output.startswith(left.streamed) and ("word " * 2_000).startswith(output)
        used = instance.get(f"/sessions/{left.running_session}/usage")
        assert (used["reserved_tokens"], used["model_calls"]) == (0, 1), "what the lost call had reserved is settled"
        assert used["assumed_tokens"] > 0 and not used["usage"]["complete"]
        fresh = instance.ended(instance.begin(left.running_session, script=SHORT))
        assert fresh["state"] == "completed", fresh
        states = [turn["state"] for turn in instance.history(left.running_session)]
        assert states == ["completed", "interrupted"]
    kept = [path for path in made.home.glob("temporal.db.unreadable-*") if not path.name.endswith("-journal")]
    assert len(kept) == (mark is not None)
    assert mark is None or mark in kept[0].read_bytes()
    assert store.exists() and (mark is None or mark not in store.read_bytes())
