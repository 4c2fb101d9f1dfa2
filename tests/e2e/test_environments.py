"""Environments as a person has them: the installed command, real containers, and an instance that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.home import Home, Json, call, cards

pytestmark = [pytest.mark.podman, pytest.mark.slow]

SECONDS = 120.0


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s: {what}"
        time.sleep(0.2)


def environment(home: Home, session: str) -> Json:
    return home.run("env", "show", session, "--json").document


def killed(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_an_instance_that_is_killed_in_the_middle_goes_on_with_the_same_command(home: Home) -> None:
    work = home.work / "project"
    work.mkdir()
    (work / "package.json").write_text("{}")
    install = "mkdir -p ~/.venv/bin node_modules/x && echo done >> log && echo fine"
    command = f"echo begun >> log && echo started && sleep 8 && {install}"
    (work / ".devcontainer.json").write_text(json.dumps({"postCreateCommand": command}))
    instance = home.start("dev")
    until(lambda: home.run("session", "list").code == 0 and (home.data / "api.sock").exists(), "dev serves")
    session = home.run("session", "new", work).stdout.strip()
    asked = home.run("env", "prepare", session, "--json")
    assert (asked.code, asked.document["state"]) == (3, "awaiting_approval")
    assert home.run("env", "review", session, "--approve", "--no-wait").code == 0
    until(lambda: (work / "log").exists(), "the command runs")
    progress = home.start("env", "log", session, "--follow")
    assert progress.stdout is not None
    assert progress.stdout.readline() == "started\n", "what it puts out is shown while it runs"
    killed(progress)
    killed(instance)
    assert environment(home, session)["state"] == "preparing", "History needs no instance"
    instance = home.start("dev")
    until(lambda: environment(home, session)["state"] in ("ready", "failed"), "the environment is settled")
    found = environment(home, session)
    assert found["state"] == "ready", found
    assert (found["result"]["exit_code"], found["result"]["output"]) == (0, "started\nfine\n")
    assert home.run("env", "log", session, "--follow").stdout == "started\nfine\n"
    assert (work / "log").read_text() == "begun\ndone\n", "it ran once"
    script = home.script({"calls": [call("bash", command="ls node_modules ~/.venv")]}, {"text": "Seen."})
    turn = home.run("turn", "send", session, "Look", "--script", script, "--json").document
    assert cards(turn) == [("bash", "succeeded")]
    assert "x" in turn["tools"][0]["preview"]
    assert list((work / "node_modules").iterdir()) == [], "the volume hides the host's folder"
    history = home.run("history", session, "--json").document
    assert [each["state"] for each in history["environments"]] == ["ready"]
    os.killpg(instance.pid, signal.SIGINT)
    instance.communicate(timeout=SECONDS)


def test_run_without_a_terminal_uses_nothing_that_nobody_agreed_to(home: Home, tmp_path: Path) -> None:
    work = home.work / "project"
    work.mkdir()
    (work / "requirements.txt").write_text("x")
    script = home.script({"calls": [call("bash", command="ls ~/.venv")]}, {"text": "Done."})
    done = home.run("run", "Look", "--workspace", work, "--script", script, "--json")
    assert done.code == 0, done.stderr
    assert "pip install -r requirements.txt" in done.stderr and "--setup run" in done.stderr
    found = environment(home, done.document["session_id"])
    assert (found["state"], found["consent"]["approved"], found["plan"]["command"]) == ("ready", False, None)
    failed = home.run("run", "Look", "--workspace", work, "--script", script, "--setup", "run", "--json")
    assert failed.code == 3
    assert "python:3.12-slim" in failed.stderr + failed.stdout, "the image is not here, and is not replaced"
