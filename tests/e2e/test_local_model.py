"""A turn against a real small model: nobody scripted what it says."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.e2e.home import Home
from tests.support.model_server import LOCAL_MODEL

pytestmark = [pytest.mark.slow, pytest.mark.llm, pytest.mark.timeout(240)]


@pytest.fixture
def project(home: Home, local_model: str) -> Path:
    """A workspace, beside a configuration whose agent uses the model and, since it cannot call any, no tools."""
    configuration = {
        "providers": {"local": {"type": "openai_compatible", "base_url": local_model, "model": LOCAL_MODEL}},
        "agents": {
            "default": {
                "provider": "local",
                "system_prompt": "You are a helpful assistant.",
                "tools": [],
                "sampling": {"temperature": 0, "max_tokens": 120},
            },
            "talkative": {
                "provider": "local",
                "system_prompt": "You tell long stories.",
                "tools": [],
                "sampling": {"max_tokens": 3000},
            },
        },
    }
    # JSON is YAML.
    (home.work / "milepost.yaml").write_text(json.dumps(configuration), "utf-8")
    folder = home.work / "project"
    folder.mkdir()
    return folder


def test_text_streams_and_usage_is_what_the_server_counted(home: Home, project: Path) -> None:
    request = "List the seven days of the week, then the twelve months, and say one sentence about each month."
    process = home.start("run", request, "--workspace", project, "--json")
    sizes: set[int] = set()
    while process.poll() is None:
        sizes.add(len(home.progress()))
        time.sleep(0.02)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0, home.progress()[-2000:]
    turn = json.loads(stdout)
    assert turn["state"] == "completed" and len(turn["output"]) > 100
    assert "".join(turn["output"].split()) in "".join(home.progress().split()), "all of it was shown"
    assert len(sizes) > 10, "and not at once"
    usage = turn["usage"]
    assert usage["complete"]
    assert 10 < usage["input_tokens"] + usage["cached_input_tokens"] < 200
    assert 20 < usage["output_tokens"] <= 120
    (agent,) = turn["agents"]
    assert (agent["provider"], agent["model"], agent["rounds"], agent["retries"]) == ("local", LOCAL_MODEL, 1, 0)
    (entry,) = home.run("history", turn["session_id"], "--json").document["turns"]
    assert (entry["output"], entry["usage"], entry["request"]) == (turn["output"], usage, request)
    doctor = home.run("doctor", "--json").document
    assert all(check["ok"] for check in doctor["checks"] if check["name"].startswith("model:"))


def test_ctrl_c_ends_a_real_answer_and_the_next_turn_is_served(home: Home, project: Path) -> None:
    def said() -> int:
        return len(home.progress())

    finished = home.interrupt(
        "run",
        "Tell me a very long story about a lighthouse.",
        "--agent",
        "talkative",
        "--workspace",
        project,
        "--json",
        when=lambda: said() > 400,
    )
    assert finished.code == 130, finished.stderr[-2000:]
    turn = finished.document
    assert turn["state"] == "stopped" and turn["agents"][0]["partial"]
    assert turn["output"] and not turn["usage"]["complete"]
    after = home.turn("Say hello.", project)
    assert after["state"] == "completed" and after["usage"]["complete"]
