"""Checkpoints over HTTP and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import commands
from tests.api.stack import AGENT, Stack
from tests.api.test_rewinds import _turn as finished_turn
from tests.cli.conftest import NO_TOOLS


async def test_written_listed_and_discarded(stack: Stack) -> None:
    session = await stack.open_session()
    turns = [await finished_turn(stack, session, text) for text in ("one", "two")]
    path = f"/api/v1/sessions/{session}/checkpoints"
    assert (await stack.client.get(path)).json() == {"session_id": session, "checkpoints": []}
    written = await stack.post(path, {})
    assert written.status_code == 200
    (made,) = written.json()["checkpoints"]
    assert (made["agent"], made["usable"], made["problem"], made["omitted"]) == (AGENT, True, None, 0)
    assert [(turn["turn_id"], turn["number"], turn["messages"], turn["ended"]) for turn in made["turns"]] == [
        (turns[0], 1, 2, True),
        (turns[1], 2, 2, True),
    ]
    assert made["messages"] == 4 and made["usage"]["complete"] in (True, False)
    listed = (await stack.client.get(path)).json()["checkpoints"]
    assert listed == [made]
    (file,) = (stack.root / "checkpoints").rglob("*.checkpoint")
    assert file.stat().st_size == made["bytes"]
    file.write_bytes(b"no checkpoint")
    (broken,) = (await stack.client.get(path)).json()["checkpoints"]
    assert not broken["usable"] and broken["problem"] == "The file is no checkpoint."
    assert broken["turns"] == [] and broken["usage"] is None and broken["written_at"] is None
    unknown = await stack.post(path, {"agent": "nobody"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "agent_unknown")
    assert (await stack.client.get(path, params={"agent": "nobody"})).status_code == 404
    done = await stack.post(f"{path}/discard", {"agent": AGENT})
    assert done.json() == {"session_id": session, "discarded": 1}
    assert not file.exists()
    assert (await stack.client.get("/api/v1/sessions/ses_none/checkpoints")).status_code == 404


async def test_a_running_turn_is_left_out(stack: Stack) -> None:
    session = await stack.open_session()
    await finished_turn(stack, session, "one")
    await stack.begin(session, "two")
    (made,) = (await stack.post(f"/api/v1/sessions/{session}/checkpoints", {})).json()["checkpoints"]
    assert [turn["number"] for turn in made["turns"]] == [1]


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "milepost.yaml").write_text(NO_TOOLS)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(commands, list(arguments))
        return done.exit_code, done.output

    session = run("session", "new")[1].strip()
    assert run("checkpoint", "write", session) == (0, "No agent of this Session has said anything yet.\n")
    code, text = run("checkpoint", "list", session, "--json")
    assert code == 0 and json.loads(text) == {"session_id": session, "checkpoints": []}
    assert run("checkpoint", "show", session) == (1, "There is no such checkpoint.\n")
    assert run("checkpoint", "discard", session) == (0, "Discarded 0 checkpoints.\n")
