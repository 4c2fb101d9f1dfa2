"""`milepost agents`: the file is edited, and a running instance follows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import commands

TEXT = "# Ours.\nagents:\n  default: {max_rounds: 3}  # few\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))
    (tmp_path / "milepost.yaml").write_text(TEXT, encoding="utf-8")
    return tmp_path


def test_agents_are_shown_and_edited(home: Path) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(commands, ["agents", *arguments])
        assert done.exit_code == code, done.output
        return done.output

    run("add", "reviewer", "tools=[read_file, grep]", "sampling.temperature=0.2", 'system_prompt="Be: kind"')
    shown = json.loads(run("show", "reviewer", "--json"))
    assert shown["written"] == {
        "system_prompt": "Be: kind",
        "tools": ["read_file", "grep"],
        "sampling": {"temperature": 0.2},
    }
    assert "It counts from the next turn on." in run("set", "default", "model=demo", "--unset", "max_rounds")
    assert json.loads(run("show", "default", "--json"))["written"] == {"model": "demo"}
    assert "in force:" in run("show", "default")
    assert "Did you mean 'model'?" in run("set", "default", "modle=x", code=2)
    assert "Did you mean 'reviewer'?" in run("show", "revewer", code=1)
    for wrong in (["set", "default"], ["set", "default", "model"], ["set", "default", "tools=[", "--json"]):
        run(*wrong, code=2)
    run("remove", "reviewer")
    text = (home / "milepost.yaml").read_text(encoding="utf-8")
    assert text.startswith("# Ours.\nagents:\n  default: {model: demo}") and "reviewer" not in text
