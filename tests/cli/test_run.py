"""The fixed contract of `milepost run`: one document, the outcome as exit code, Ctrl-C stops the turn."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import SECONDS, Milepost, running

SLOW = """
responses:
  - text: "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    delay: 0.25
"""


def test_without_any_configuration_a_turn_runs_and_prints_one_document(milepost: Milepost, tmp_path: Path) -> None:
    (milepost.folder / "milepost.yaml").unlink()
    # Only what tests need: no containers, and ports that no other test has.
    milepost.environment = {
        "MILEPOST_SANDBOX__BACKEND": "none",
        "MILEPOST_TEMPORAL__PORT": "0",
        "MILEPOST_TEMPORAL__UI_PORT": "0",
    }
    workspace = tmp_path / "other"
    workspace.mkdir()
    done = milepost.run("run", "Look around", "--workspace", str(workspace), "--json")
    assert done.code == 0, done.err
    document = done.json()
    wanted = {"session_id", "turn_id", "state", "output", "usage", "workflow_id", "temporal_url"}
    assert wanted <= document.keys()
    assert document["state"] == "completed"
    assert document["agents"][0]["provider"] == "scripted"
    assert document["temporal_url"].endswith(document["workflow_id"].replace("/", "%2F"))
    assert document["output"]
    assert document["output"][:20] in done.err, "progress goes to standard error"

    history = milepost.run("history", document["session_id"], "--json").json()
    turn = history["turns"][0]
    assert {"turn_id", "state", "request", "output", "superseded"} <= turn.keys()
    assert (turn["turn_id"], turn["request"]) == (document["turn_id"], "Look around")
    assert turn["output"] == document["output"]
    assert not (milepost.home / "instance.json").exists()


def test_ctrl_c_stops_the_turn_and_history_is_complete(milepost: Milepost) -> None:
    process = milepost.start("run", "Count", "--script", milepost.script(SLOW), "--json")
    assert process.stderr is not None
    seen = ""
    deadline = time.monotonic() + SECONDS
    while "three" not in seen and time.monotonic() < deadline:
        seen += process.stderr.read(1)
    process.send_signal(signal.SIGINT)
    done = milepost.finish(process)
    assert done.code == 130, done.err
    document = done.json()
    assert document["state"] == "stopped"
    assert document["output"].startswith("one two three")
    assert "sixteen" not in document["output"]
    turn = milepost.run("history", document["session_id"], "--json").json()["turns"][0]
    assert (turn["state"], turn["output"]) == ("stopped", document["output"])
    assert turn["agents"][0]["partial"] is True


@pytest.mark.slow
def test_a_killed_run_is_taken_up_by_the_next_instance(milepost: Milepost) -> None:
    process = milepost.start("run", "Count", "--script", milepost.script(SLOW), "--json")
    assert process.stderr is not None
    seen = ""
    deadline = time.monotonic() + SECONDS
    while "three" not in seen and time.monotonic() < deadline:
        seen += process.stderr.read(1)
    process.kill()
    process.communicate()
    session = milepost.run("session", "list", "--json").json()["sessions"][0]["session_id"]
    turn = milepost.run("history", session, "--json").json()["turns"][0]
    assert turn["state"] == "running"
    nobody = milepost.run("turn", "watch", turn["turn_id"], "--json")
    assert nobody.code == 4
    assert "milepost dev" in nobody.error()["fix"]
    with running(milepost, "dev"):
        watched = milepost.run("turn", "watch", turn["turn_id"], "--json")
    assert watched.code == 0, watched.err
    done = milepost.run("turn", "show", turn["turn_id"], "--json").json()
    assert (done["state"], done["output"].split()[-1]) == ("completed", "sixteen")


REFUSED = [
    (["run", " "], 2, "invalid_input"),
    (["run", "x", "--agent", "nobody"], 1, "agent_unknown"),
    (["run", "x", "--provider", "nobody"], 1, "provider_unknown"),
    (["run", "x", "--script", "missing.yaml"], 2, "invalid_input"),
    (["run", "x", "--workspace", "missing"], 2, "invalid_input"),
    (["run", "x", "--workspace", "milepost.yaml"], 2, "invalid_input"),
    (["run", "x", "--workspace", "/"], 2, "invalid_input"),
    (["run", "x", "--workspace", ".."], 2, "invalid_input"),
    (["chat", "--workspace", "missing"], 2, "invalid_input"),
]


@pytest.mark.parametrize(("arguments", "code", "error"), REFUSED)
def test_what_cannot_be_done_is_refused_in_one_sentence_and_leaves_nothing(
    milepost: Milepost, arguments: list[str], code: int, error: str
) -> None:
    done = milepost.run(*arguments, "--json")
    assert (done.code, done.out) == (code, "")
    found = done.error()
    assert found["code"] == error
    assert "\n" not in found["message"]
    assert "Temporal" not in done.err, "it is refused before anything is started"
    assert milepost.run("session", "list", "--json").json() == {"sessions": []}


def test_a_missing_key_is_named_by_its_reference(milepost: Milepost) -> None:
    provider = "{type: openai_compatible, base_url: 'http://127.0.0.1:1/v1', model: m, api_key: 'env:NO_SUCH_KEY'}"
    (milepost.folder / "milepost.yaml").open("a").write(f"providers: {{far: {provider}}}\n")
    done = milepost.run("run", "x", "--provider", "far", "--json")
    assert done.code == 2
    assert done.error()["code"] == "secret_missing"
    assert "env:NO_SUCH_KEY" in done.error()["message"]


@pytest.mark.slow
def test_two_runs_on_one_data_root_both_come_to_their_end(milepost: Milepost) -> None:
    script = milepost.script('responses: [{text: "done", delay: 0.2}]')
    runs: list[subprocess.Popen[str]] = [
        milepost.start("run", f"Number {n}", "--script", script, "--json") for n in range(2)
    ]
    results = [milepost.finish(process) for process in runs]
    assert [done.code for done in results] == [0, 0], [done.err for done in results]
    assert {done.json()["output"] for done in results} == {"done"}
    assert len(milepost.run("session", "list", "--json").json()["sessions"]) == 2
