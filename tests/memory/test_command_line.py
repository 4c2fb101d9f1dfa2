"""`milepost memory` as a person uses it: on an instance with the default configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import commands
from tests.cli.conftest import NO_TOOLS, Milepost, milepost, running

__all__ = ["milepost"]

TEAM = NO_TOOLS + "agents: {default: {memory: {blocks: {team: {shared: true}}}}}\n"


class Person:
    """Gives commands to the running instance, in this process."""

    def run(self, *words: str, stdin: str | None = None, code: int = 0) -> str:
        done = CliRunner().invoke(commands, list(words), input=stdin)
        assert done.exit_code == code, (words, done.output, done.exception)
        return done.output

    def json(self, *words: str) -> Any:
        return json.loads(CliRunner().invoke(commands, [*words, "--json"]).stdout)


@pytest.fixture
def person(milepost: Milepost, monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    (milepost.folder / "milepost.yaml").write_text(TEAM)
    monkeypatch.chdir(milepost.folder)
    monkeypatch.setenv("MILEPOST_HOME", str(milepost.home))
    with running(milepost, "dev"):
        yield Person()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_person_sees_and_edits_memory(person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = person.json("run", "The cat is called Mia.")
    session = document["session_id"]
    assert document["agents"][0]["memory"]["blocks"][0]["label"] == "persona"
    assert person.run("memory", "rebuild", session) == "Rebuilt: 2 records of 1 agent.\n"
    shown = person.json("memory", "show", session)
    assert shown["waiting"] == [] and shown["owners"][0]["records"] == 2
    person.run("memory", "block", "set", session, "human", "Name: Kim.")
    person.run("memory", "block", "set", "shared", "team", "-", stdin="Known to all.")
    stale = person.run("memory", "block", "set", session, "human", "x", "--expect", "0", code=1)
    assert "at version 1, not 0" in stale
    assert "Name: Kim." in person.run("memory", "blocks", session)
    person.run("memory", "block", "revert", session, "human", "--to", "0")
    history = person.run("memory", "block", "show", session, "human")
    assert "reverted to version 0" in history and "(empty)" in history
    head, _, first = [line for line in history.splitlines() if "TEXT" in line or " person:" in line]
    assert head.split()[-2:] == ["TEXT", "NOTE"] and first.endswith("Name: Kim.")
    assert "Known to all." in person.run("memory", "block", "show", "shared", "team")
    assert "user" in person.run("memory", "log", session, "--from", "2020-01-01")
    assert person.run("memory", "log", session, "--to", "2020-01-01") == "Nothing was found.\n"
    reverse = person.run("memory", "log", session, "--from", "2021-01-01", "--to", "2020-01-01", code=2)
    assert "'from' is after 'to'" in reverse
    assert "Nothing was found." in person.run("memory", "recall", session, "zeppelin", "--min-score", "1")
    found = person.json("memory", "recall", session, "Which cat?")["items"]
    assert found[0]["text"] == "The cat is called Mia."
    person.run("memory", "forget", session, found[0]["id"])
    listed = person.json("memory", "records", session)["records"]
    assert [record["speaker"] for record in listed] == ["default"]
    lines = [json.loads(line) for line in person.run("memory", "export", session).splitlines()]
    kinds = [line["type"] for line in lines]
    assert kinds == ["block", "block", "block", "entry", "entry", "record"]
    file = tmp_path / "memory.jsonl"
    person.run("memory", "export", session, "--output", str(file))
    written = file.read_bytes()
    assert len(written.splitlines()) == len(lines)
    again = person.run("memory", "export", session, "--output", str(file), code=1)
    assert again == f"Error: The file {file} exists already. Name a new file.\n"
    done = CliRunner().invoke(commands, ["memory", "export", session, "--output", str(file), "--json"])
    assert json.loads(done.stderr)["error"]["code"] == "target_not_empty"
    assert file.read_bytes() == written
    assert "cannot be written" in person.run("memory", "export", session, "-o", str(tmp_path / "no" / "x"), code=2)
    fresh = tmp_path / "none.jsonl"
    person.run("memory", "export", "ses_none", "--agent", "default", "-o", str(fresh), code=1)
    assert not fresh.exists()
    second = person.json("turn", "send", session, "And now?")
    assert second["agents"][0]["memory"]["changed"] == ["team"]
    assert "Told of changed core memory: team" in person.run("turn", "show", second["turn_id"])
    # What was restored is rebuilt by the first worker; until then it is said what is missing, and how to have it now.
    person.run("backup", str(tmp_path / "backup"))
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "restored"))
    person.run("restore", str(tmp_path / "backup"))
    told = f"will be rebuilt when a worker runs; now: milepost memory rebuild {session}\n"
    assert told in person.run("memory", "blocks", session)
    assert told in person.run("memory", "show", session)
