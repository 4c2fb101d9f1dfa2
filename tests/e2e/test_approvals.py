"""A command that needs a person: without a terminal, with an instance that is killed, and answered meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.home import COMMAND_SECONDS, Home, call, cards

pytestmark = [pytest.mark.podman, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("podman_root")]

ASKS = "agents: {default: {approvals: {bash: ask}}}\ntemporal: {port: 0, ui_port: 0}\napi: {port: 0}\n"


@pytest.fixture
def folder(home: Home) -> Path:
    (home.work / "milepost.yaml").write_text(ASKS)
    made = home.work / "project"
    made.mkdir()
    return made


def test_an_approved_call_runs_once_though_the_instance_was_killed_before(home: Home, folder: Path) -> None:
    script = home.script({"calls": [call("bash", command="echo ran >> journal")]}, {"text": "Done."})
    asked = ("run", "go", "--workspace", folder, "--script", script, "--json")
    alone = home.run(*asked)
    assert alone.code == 3, alone.stderr[-3000:]
    assert alone.document["state"] == "stopped", "nobody would go on with it"
    assert "Needs a person" not in (alone.document["output"] or "")
    (question,) = alone.document["approvals"]
    late = home.run("approvals", "approve", question["approval_id"], "--json")
    assert late.code == 1 and "turn_not_running" in late.stderr

    instance = home.start("dev")
    try:
        _await(lambda: (home.data / "instance.json").exists())
        left = home.run(*asked)
        assert left.code == 3, left.stderr[-3000:]
        assert (left.document["state"], left.document["status"]) == ("running", "waiting_for_person")
        (question,) = left.document["approvals"]
        assert f"milepost approvals approve {question['approval_id']}" in left.stderr
    finally:
        os.killpg(instance.pid, signal.SIGKILL)
        instance.communicate()

    assert home.run("approvals", "approve", question["approval_id"], "--json").document["state"] == "approved"
    assert not (folder / "journal").exists()
    instance = home.start("dev")
    try:
        _await((folder / "journal").exists)
        _await(lambda: home.run("turn", "show", left.document["turn_id"], "--json").document["state"] != "running")
        done = home.run("turn", "show", left.document["turn_id"], "--json").document
    finally:
        os.killpg(instance.pid, signal.SIGTERM)
        instance.communicate(timeout=COMMAND_SECONDS)
    assert (done["state"], done["output"]) == ("completed", "Done.")
    assert cards(done) == [("bash", "succeeded")]
    assert (folder / "journal").read_text() == "ran\n"
    _end_service(home)


def _end_service(home: Home) -> None:
    """The Podman service of an instance that was killed outlives it for ten minutes, for the next one to use."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if b"system\0service" in command and str(home.data).encode() in command:
                os.kill(int(entry.name), signal.SIGTERM)
    _await(lambda: not home.leftovers())


def _await(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + COMMAND_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
