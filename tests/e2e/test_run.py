"""`milepost run` on an empty data root without any configuration, Ctrl-C, and the documents other programs rely on."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.providers.scripted.demo import demo_project_files
from tests.e2e.home import Home, Json, call, cards

pytestmark = [pytest.mark.podman, pytest.mark.timeout(240), pytest.mark.usefixtures("podman_root")]

RUN_KEYS = {"session_id", "turn_id", "state", "output", "usage", "workflow_id", "temporal_url"}
HISTORY_KEYS = {"turn_id", "state", "request", "output", "superseded"}


@pytest.fixture
def sample(home: Home) -> Path:
    """The sample project of the demonstration."""
    folder = home.work / "sample"
    folder.mkdir()
    for name, data in demo_project_files().items():
        (folder / name).write_bytes(data)
    return folder


def require_turn(turn: Json, state: str) -> None:
    assert turn.keys() >= RUN_KEYS
    assert turn["state"] == state
    assert turn["workflow_id"].endswith(f"/turn/{turn['turn_id']}")
    assert turn["temporal_url"].startswith("http") and turn["turn_id"] in turn["temporal_url"]
    usage = turn["usage"]
    classes = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
    assert usage["total_tokens"] == sum(usage[name] for name in classes)
    assert isinstance(usage["complete"], bool)


def test_the_demonstration_corrects_the_sample_and_a_second_run_builds_on_the_first(home: Home, sample: Path) -> None:
    assert "Helo" in (sample / "greeting.py").read_text("utf-8")
    first = home.turn("Correct the greeting and run the test.", sample)
    require_turn(first, "completed")
    assert "Helo" not in (sample / "greeting.py").read_text("utf-8")
    assert set(cards(first)) >= {("read_file", "succeeded"), ("edit_file", "succeeded"), ("bash", "succeeded")}
    assert first["usage"]["complete"] and first["output"]
    assert {path.name for path in home.work.iterdir()} == {"sample"}

    second = home.turn("And again.", sample)
    require_turn(second, "completed")
    assert second["turn_id"] != first["turn_id"]
    assert second["workflow_id"].split("/")[0] == first["workflow_id"].split("/")[0], "one instance, one ledger"
    assert "edit_file" not in [tool for tool, _ in cards(second)], "it saw that nothing is left to do"

    sessions = home.run("session", "list", "--json").document["sessions"]
    assert {session["session_id"] for session in sessions} == {first["session_id"], second["session_id"]}
    assert len({session["workspace"]["workspace_id"] for session in sessions}) == 1

    history = home.run("history", first["session_id"], "--json").document
    (entry,) = history["turns"]
    assert entry.keys() >= HISTORY_KEYS
    assert (entry["turn_id"], entry["state"], entry["superseded"]) == (first["turn_id"], "completed", False)
    assert (entry["request"], entry["output"]) == ("Correct the greeting and run the test.", first["output"])

    doctor = home.run("doctor", "--json")
    assert doctor.code == 0
    checks = doctor.document["checks"]
    assert all(check.keys() >= {"name", "ok", "detail", "fix"} for check in checks)
    assert all(isinstance(check["ok"], bool) and isinstance(check["detail"], str) for check in checks)
    assert {"database", "temporal", "sandbox", "disk"} <= {check["name"] for check in checks}


@pytest.mark.slow
def test_progress_goes_to_standard_error_and_standard_output_is_one_document(home: Home) -> None:
    folder = home.work / "project"
    folder.mkdir()
    script = home.script({"text": "A word, then work.", "calls": [call("bash", command="exit 7")]}, {"text": "Done."})
    finished = home.run("run", "go", "--workspace", folder, "--script", script, "--json")
    require_turn(finished.document, "completed")
    assert cards(finished.document) == [("bash", "failed")]
    assert "A word, then work." in finished.stderr and "bash" in finished.stderr
    assert "Done." in finished.document["output"]

    past_the_end = home.script({"calls": [call("bash", command="true")]})
    failed = home.run("run", "go", "--workspace", folder, "--script", past_the_end, "--json")
    assert failed.code == 1
    require_turn(failed.document, "failed")
    assert failed.document["error"]["code"] == "script_exhausted"


@pytest.mark.slow
def test_ctrl_c_in_mid_answer_stops_the_turn_and_keeps_what_was_said(home: Home) -> None:
    folder = home.work / "project"
    folder.mkdir()
    words = " ".join(f"word{number}" for number in range(3_000))
    script = home.script({"text": words, "delay": 0.02})
    finished = home.interrupt(
        "run", "go", "--workspace", folder, "--script", script, "--json", when=lambda: "word9 " in home.progress()
    )
    assert finished.code == 130, finished.stderr[-2000:]
    require_turn(finished.document, "stopped")
    assert not finished.document["usage"]["complete"], "what the cut call cost is not known"
    assert words.startswith(finished.document["output"]) and "word9" in finished.document["output"]
    (entry,) = home.run("history", finished.document["session_id"], "--json").document["turns"]
    assert (entry["state"], entry["output"]) == ("stopped", finished.document["output"])
    after = home.turn("go on", folder, "--script", home.script({"text": "Fresh."}))
    assert after["output"] == "Fresh."


def test_ctrl_c_while_a_command_runs_ends_the_command_and_all_it_started(home: Home) -> None:
    folder = home.work / "project"
    folder.mkdir()
    seconds = 71_613
    command = f"(sleep {seconds} & sleep {seconds}) & echo begun; touch begun; sleep {seconds}; touch ended"
    script = home.script({"text": "Wait.", "calls": [call("bash", command=command, timeout=600)]}, {"text": "never"})
    finished = home.interrupt(
        "run", "go", "--workspace", folder, "--script", script, "--json", when=(folder / "begun").exists
    )
    assert finished.code == 130, finished.stderr[-2000:]
    require_turn(finished.document, "stopped")
    assert cards(finished.document) == [("bash", "cancelled")]
    assert "begun" in finished.document["tools"][0]["preview"]
    assert not (folder / "ended").exists()
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in running if str(seconds).encode() in command]
