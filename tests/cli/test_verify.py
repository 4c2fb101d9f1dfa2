"""`milepost verify`: a sound ledger holds, and every way to tamper with it is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from milepost.domain.turns import TurnState
from milepost.ledger.chain import event_hash
from milepost.services import verification
from milepost.services.contents import Contents
from milepost.services.sessions import OpenSession
from milepost.services.turns import BeginTurn
from milepost.services.verification import Verification, VerificationService
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from milepost.storage.bodies import body
from milepost.storage.events import key_digest
from tests.api.stack import AGENT, Work, make_services
from tests.cli.conftest import Milepost
from tests.support.databases import OpenLedger

OUTPUT = 300_000
"""Characters of each tool's output: the same text, so that both calls share one blob."""

Tamper = Callable[[sqlite3.Connection], object]


def _contents(root: Path) -> Contents:
    return Contents(FileBlobStore(root / "blobs"))


async def _fill(opened: OpenLedger, root: Path) -> Work:
    """Two Sessions: one with an ended turn, which is returned, and a running one; one without turns."""
    services = make_services(opened.ledger, opened.notifier, root, {})
    await services.sessions.open(OpenSession(str(root)))
    session = await services.sessions.open(OpenSession(str(root)))
    works = []
    for number in range(2):
        view = await services.turns.begin(BeginTurn(session.session_id, f"request {number}", agent=AGENT))
        work = Work(opened.ledger, session.session_id, view.turn.turn_id)
        await work.start_agent()
        await work.run_tool(await _contents(root).store("x" * OUTPUT))
        if number == 0:
            await work.end(TurnState.STOPPED, "enough")
        works.append(work)
    return works[0]


@pytest.mark.parametrize("batch", [1, 500])
async def test_a_sound_ledger_holds(
    opened: OpenLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(verification, "BATCH_EVENTS", batch)
    monkeypatch.setattr(verification, "PAGE", min(batch, 200))
    await _fill(opened, tmp_path)
    found = await VerificationService(opened.ledger, _contents(tmp_path)).verify()
    assert (found.found, found.findings) == (0, [])
    # The instance's stream, which has nothing here, and two Sessions.
    assert (found.streams, found.turns) == (3, 2)
    assert (found.events, found.blobs) == (9, 1)


async def _tampered(url: str, root: Path, tamper: Tamper) -> tuple[Verification, Work]:
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)
    work = await _fill(OpenLedger(ledger, notifier, url), root)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        assert triggers
        for (name,) in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        tamper(connection)
        connection.commit()
    try:
        return await VerificationService(ledger, _contents(root)).verify(), work
    finally:
        await ledger.close()
        await notifier.close()


def _append_forged(connection: sqlite3.Connection) -> None:
    """A second end of the ended turn, with hashes that hold."""
    stream, turn = connection.execute("SELECT session_id, turn_id FROM turns WHERE state = 'stopped'").fetchone()
    head, hash_ = connection.execute(
        "SELECT head_seq, head_hash FROM streams WHERE stream_id = ?", (stream,)
    ).fetchone()
    forged = (stream, head + 1, "forged", "turn.completed", 1, 5, turn, b"{}")
    new = event_hash(hash_, *forged)
    numbers = dict(connection.execute("SELECT name, number FROM identifiers"))
    row = (numbers[stream], head + 1, key_digest("forged"), *forged[3:6], numbers[turn], 0)
    places = ", ".join("?" * 10)
    connection.execute(f"INSERT INTO events VALUES ({places})", (*row, body("forged", b"{}", turn), new))
    connection.execute("UPDATE streams SET head_seq = ?, head_hash = ? WHERE stream_id = ?", (head + 1, new, stream))


def _sql(statement: str) -> Tamper:
    return lambda connection: connection.execute(statement)


@pytest.mark.parametrize(
    ("tamper", "problem"),
    [
        (_sql("UPDATE events SET body = X'7B7D' WHERE seq = 3"), "the hash of seq 3 does not hold"),
        (_sql("UPDATE events SET body = substr(body, 1, 20) WHERE seq = 3"), "the hash of seq 3 does not hold"),
        (_sql("UPDATE events SET body = X'01FFFFFF' WHERE seq = 3"), "the hash of seq 3 does not hold"),
        (_sql("UPDATE events SET key_digest = X'00' WHERE seq = 3"), "the hash of seq 3 does not hold"),
        (_sql("UPDATE events SET at = at + 1 WHERE seq = 3"), "the hash of seq 3 does not hold"),
        (_sql("DELETE FROM events WHERE seq = 3"), "seq 3 is missing"),
        (_sql("DELETE FROM events WHERE seq = 8"), "it ends at seq 7, but its head is seq 8"),
        (
            _sql("UPDATE turns SET state = 'completed' WHERE state = 'stopped'"),
            "its terminal event is one of 'stopped'",
        ),
        (_sql("UPDATE turns SET state = 'failed' WHERE state = 'running'"), "its terminal event is none"),
        (_append_forged, "'turn.completed' (seq 9) follows its end"),
    ],
)
async def test_what_was_tampered_with_is_found(sqlite_url: str, tmp_path: Path, tamper: Tamper, problem: str) -> None:
    found, work = await _tampered(sqlite_url, tmp_path, tamper)
    assert [finding.stream_id for finding in found.findings] == [work.session_id]
    assert problem in found.findings[0].problem
    # The rest is checked all the same.
    assert (found.found, found.streams) == (1, 3)


@pytest.mark.parametrize(
    ("tamper", "orphan", "parent"),
    [
        (_sql("DELETE FROM turns WHERE state = 'stopped'"), "its turn_id", "'turns'"),
        (
            _sql(
                "UPDATE identifiers SET name = 'trn_other' WHERE name = (SELECT turn_id FROM turns"
                " WHERE state = 'stopped')"
            ),
            "its turn_id trn_other",
            "'turns'",
        ),
        (_sql("DELETE FROM workspaces"), "its workspace_id", "'workspaces'"),
        (_sql("UPDATE effects SET session_id = 'ses_nowhere'"), "its session_id ses_nowhere", "'sessions'"),
        (_sql("INSERT INTO streams VALUES ('ses_lost', 'session', 0, X'')"), "its stream_id ses_lost", "'sessions'"),
    ],
)
async def test_rows_that_refer_to_missing_ones_are_found(
    sqlite_url: str, tmp_path: Path, tamper: Tamper, orphan: str, parent: str
) -> None:
    found, _ = await _tampered(sqlite_url, tmp_path, tamper)
    problems = [item.problem for item in found.findings if item.stream_id.startswith("table/")]
    assert problems
    assert all("is an orphan" in problem and orphan in problem and parent in problem for problem in problems)


async def test_a_missing_and_a_damaged_blob_are_found(opened: OpenLedger, tmp_path: Path) -> None:
    work = await _fill(opened, tmp_path)
    (blob,) = (path for path in (tmp_path / "blobs").glob("*/*") if len(path.name) == 64)
    whole = blob.read_bytes()
    blob.write_bytes(whole[:-1] + b"y")
    service = VerificationService(opened.ledger, _contents(tmp_path))
    found = await service.verify()
    # Once, however many events name it.
    assert [finding.stream_id for finding in found.findings] == [work.session_id]
    assert found.findings[0].problem == f"Event 4 ('tool.finished'): The blob {blob.name} is damaged."
    blob.unlink()
    found = await service.verify()
    assert f"The blob {blob.name} ({OUTPUT} bytes) is missing." in found.findings[0].problem
    blob.write_bytes(whole)
    assert (await service.verify()).found == 0


def test_the_command_tells_by_its_exit_code(milepost: Milepost) -> None:
    missing = milepost.run("verify", "--json")
    assert missing.code != 0
    assert missing.error()["code"] == "schema_outdated"
    assert milepost.run("db", "upgrade").code == 0
    assert milepost.run("session", "new", "--json").code == 0
    done = milepost.run("verify", "--json")
    assert (done.code, done.json()["ok"], done.json()["events"]) == (0, True, 1)
    with closing(sqlite3.connect(milepost.home / "milepost.db")) as connection:
        connection.execute("UPDATE streams SET head_seq = 2 WHERE head_seq = 1")
        connection.commit()
    done = milepost.run("verify", "--json")
    assert (done.code, done.json()["ok"], done.json()["found"]) == (1, False, 1)
    told = milepost.run("verify")
    assert told.code == 1
    assert "it ends at seq 1, but its head is seq 2" in told.out
