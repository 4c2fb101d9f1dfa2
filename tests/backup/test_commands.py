"""`milepost backup`, `restore` and `gc`, as a person runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import NO_TOOLS, Milepost


@pytest.mark.slow
def test_from_one_machine_to_another(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    old, new = Milepost(tmp_path / "old", folder), Milepost(tmp_path / "new", folder)
    old.configure(NO_TOOLS)
    assert old.run("db", "upgrade").code == 0
    session = old.run("session", "new", "--json").json()["session_id"]
    told = old.run("backup", "saved.tar.gz")
    assert told.code == 0 and "1 event of 1 Session, 0 blobs" in told.out
    again = old.run("backup", "saved.tar.gz", "--json")
    assert (again.code, again.error()["code"]) == (1, "target_not_empty")

    done = new.run("restore", "saved.tar.gz", "--verify", "--json")
    assert done.code == 0, done.err
    found = done.json()
    assert (found["ok"], found["opened"], found["verification"]["found"]) == (True, [session], 0)
    shown = new.run("session", "list", "--json")
    assert session in shown.out
    refused = new.run("restore", "saved.tar.gz", "--json")
    assert (refused.code, refused.error()["code"]) == (1, "target_not_empty")
    (folder / "half.tar.gz").write_bytes((folder / "saved.tar.gz").read_bytes()[:300])
    broken = Milepost(tmp_path / "third", folder).run("restore", "half.tar.gz", "--json")
    assert (broken.code, broken.error()["code"]) == (2, "backup_unusable")
    collected = new.run("gc", "--dry-run", "--json")
    assert collected.code == 0
    assert (collected.json()["dry_run"], collected.json()["blobs"], collected.json()["states"]) == (True, 0, 0)
