"""Commands as clients of one running `milepost dev`."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import NO_TOOLS, SECONDS, Milepost, running

LONG = """
responses:
  - text: "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    delay: 2
"""


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Milepost]:
    """A running instance, shared by the tests of this module."""
    folder = tmp_path_factory.mktemp("project")
    made = Milepost(tmp_path_factory.mktemp("root") / "home", folder)
    made.configure(NO_TOOLS)
    with running(made, "dev") as process:
        yield made
        assert process.poll() is None, "the instance must outlive its clients"


@pytest.fixture
def session(instance: Milepost) -> str:
    """A fresh Session."""
    done = instance.run("session", "new", str(instance.folder), "--title", "Work")
    assert done.code == 0, done.err
    return done.out.strip()


def send(instance: Milepost, session: str, script: str) -> str:
    done = instance.run("turn", "send", session, "Go", "--script", instance.script(script), "--detach", "--json")
    assert done.code == 0, done.err
    return str(done.json()["turn_id"])


def test_run_uses_the_running_instance(instance: Milepost) -> None:
    script = instance.script('responses: [{text: "All is well."}]')
    done = instance.run("run", "Check", "--script", script)
    assert done.code == 0, done.err
    assert "Starting" not in done.err
    assert "All is well." in done.out
    assert "Turn 1 completed" in done.out
    assert "milepost history ses_" in done.out
    assert "/namespaces/milepost-" in done.out


def test_a_failed_turn_exits_with_one_and_tells_why(instance: Milepost) -> None:
    script = instance.script("responses: [{fail: {status: 400}}]")
    done = instance.run("run", "Check", "--script", script, "--json")
    assert done.code == 1
    assert done.json()["state"] == "failed"
    assert done.json()["error"]["code"] == "model_request_rejected"
    assert [(agent["rounds"], agent["calls"]) for agent in done.json()["agents"]] == [(0, 1)]
    assert (
        "● Turn 1 failed · 1 model call · 0 tool calls · 0 tokens" in instance.run("run", "x", "--script", script).out
    )


def test_a_session_from_opening_to_reopening(instance: Milepost, session: str) -> None:
    shown = instance.run("session", "show", session, "--json").json()
    assert (shown["title"], shown["status"], shown["active_turn"]) == ("Work", "active", None)
    assert session in instance.run("session", "list").out
    assert instance.run("session", "close", session).code == 0
    refused = instance.run("turn", "send", session, "Go", "--json")
    assert (refused.code, refused.error()["code"]) == (1, "session_closed")
    assert session in refused.error()["fix"]
    assert instance.run("session", "reopen", session, "--json").json()["status"] == "active"
    listed = instance.run("session", "list", "--status", "closed", "--json").json()["sessions"]
    assert session not in [item["session_id"] for item in listed]


def test_a_running_turn_is_watched_and_stopped(instance: Milepost, session: str) -> None:
    turn = send(instance, session, LONG)
    busy = instance.run("turn", "send", session, "More", "--json")
    assert (busy.code, busy.error()["code"]) == (1, "turn_running")
    assert turn in busy.error()["message"]
    watching = instance.start("turn", "watch", turn, "--json")
    assert watching.stdout is not None
    lines = []
    for line in watching.stdout:
        lines.append(json.loads(line))
        if lines[-1]["type"] == "delta":
            break
    stopped = instance.run("turn", "stop", turn, "--reason", "enough", "--json")
    assert stopped.code == 0, stopped.err
    done = instance.finish(watching)
    assert done.code == 130
    lines += [json.loads(line) for line in done.out.splitlines()]
    assert {line["data"]["turn_id"] for line in lines if line["type"] == "event"} == {turn}
    assert lines[-1]["data"]["type"] == "turn.stopped"
    again = instance.run("turn", "stop", turn, "--json")
    assert (again.code, again.error()["code"]) == (1, "turn_not_running")


def test_a_turn_that_is_sent_shows_only_itself(instance: Milepost, session: str) -> None:
    for text in ("first", "second"):
        script = instance.script(f'responses: [{{text: "This is the {text} answer."}}]')
        done = instance.run("turn", "send", session, text, "--script", script)
        assert done.code == 0, done.err
    assert "second answer" in done.out
    assert "first answer" not in done.out
    history = instance.run("history", session)
    assert history.out.index("second answer") < history.out.index("first answer")
    newest = instance.run("history", session, "--limit", "1", "--json").json()
    assert [turn["request"] for turn in newest["turns"]] == ["second"]
    assert newest["truncated"] is True
    effects = instance.run("effects", "list", session, "--json").json()["effects"]
    assert [effect["operation"] for effect in effects] == ["model:scripted/demo"] * 2
    assert "succeeded" in instance.run("effects", "list", session, "--turn", newest["turns"][0]["turn_id"]).out


def test_a_long_request_comes_from_standard_input(instance: Milepost, session: str) -> None:
    script = instance.script('responses: [{text: "Yes."}]')
    text = "Schön " * 200_000
    sent = instance.run("turn", "send", session, "-", "--script", script, "--json", stdin=text)
    assert sent.code == 0, sent.err
    assert sent.json()["request"] == text
    done = instance.run("run", "-", "--script", script, "--json", stdin="Short")
    assert done.json()["request"] == "Short"
    too_long = instance.run("run", "-", "--json", stdin="x" * (4 * 1024 * 1024 + 1))
    assert (too_long.code, too_long.error()["field"]) == (2, "request")
    empty = instance.run("run", "-", "--json", stdin="")
    assert (empty.code, empty.error()["code"]) == (2, "invalid_input")


def test_chat_has_a_turn_per_line_and_goes_on_after_a_refusal(instance: Milepost) -> None:
    script = instance.script('responses: [{text: "Yes."}]')
    done = instance.run("chat", "--script", script, "--json", stdin="One\n\nTwo\n/exit\nThree\n")
    assert done.code == 0, done.err
    turns = [json.loads(line) for line in done.out.splitlines()]
    assert [(turn["number"], turn["request"], turn["output"]) for turn in turns] == [
        (1, "One", "Yes."),
        (2, "Two", "Yes."),
    ]
    resumed = instance.run("chat", turns[0]["session_id"], "--script", script, "--json", stdin="Three\n")
    assert [json.loads(line)["number"] for line in resumed.out.splitlines()] == [3]


def test_chat_answers_commands_itself_and_leaves_no_session_without_a_turn(instance: Milepost) -> None:
    def sessions() -> list[str]:
        listed = instance.run("session", "list", "--json").json()["sessions"]
        return [item["session_id"] for item in listed]

    before = sessions()
    done = instance.run("chat", stdin="/model gpt\n/help\n\n/exit\n")
    assert done.code == 0, done.err
    assert "There is no command /model." in done.err
    assert done.err.count("/help, /exit") == 2
    assert sessions() == before
    script = instance.script('responses: [{text: "Yes."}]')
    done = instance.run("chat", "--script", script, "--json", stdin="/etc/hosts\n /model\n")
    turns = [json.loads(line) for line in done.out.splitlines()]
    assert [turn["request"] for turn in turns] == ["/etc/hosts", " /model"]
    assert sessions() == [turns[0]["session_id"], *before]


def test_a_second_instance_is_refused_with_pid_and_socket(instance: Milepost) -> None:
    info = json.loads((instance.home / "instance.json").read_text())
    done = instance.run("dev", "--json")
    assert (done.code, done.error()["code"]) == (4, "instance_locked")
    assert str(info["pid"]) in done.error()["message"]
    assert info["socket"] in done.error()["message"]


def test_url_and_doctor_tell_about_the_running_instance(instance: Milepost) -> None:
    urls = instance.run("url", "--json").json()
    token = (instance.home / "api.token").read_text().strip()
    assert urls["token_file"] == str(instance.home / "api.token")
    assert (instance.home / "api.token").stat().st_mode & 0o777 == 0o600
    reply = httpx.get(f"{urls['api']}/api/v1/instance", headers={"Authorization": f"Bearer {token}"}, timeout=30)
    assert reply.json()["temporal_ui"] == urls["temporal_ui"]
    doctor = instance.run("doctor", "--json").json()
    checks = {check["name"]: check for check in doctor["checks"]}
    assert all({"name", "ok", "detail", "fix"} <= check.keys() for check in doctor["checks"])
    parts = {
        "configuration",
        "packages",
        "disk",
        "database",
        "temporal",
        "sandbox",
        "snapshots",
        "checkpoints",
        "embeddings",
        "model:default",
    }
    assert parts == checks.keys()
    assert checks["temporal"]["ok"], checks
    assert doctor["instance"]["role"] == "dev"


def test_a_configuration_that_the_instance_does_not_work_with_is_not_passed_over(
    instance: Milepost, session: str, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    here = Milepost(instance.home, folder)
    script = instance.script('responses: [{text: "Yes."}]')
    here.configure(f"# the same, said otherwise\n{NO_TOOLS}logging: {{level: INFO}}\n")
    assert "Warning" not in here.run("run", "Go", "--script", script).err
    here.configure(f"{NO_TOOLS}logging: {{level: ERROR}}\n")
    own, theirs = str(folder / "milepost.yaml"), str(instance.folder / "milepost.yaml")
    for arguments in (
        ["run", "Go", "--script", script],
        ["turn", "send", session, "Go", "--script", script],
        ["chat", session],
        ["doctor"],
    ):
        done = here.run(*arguments)
        assert done.code == 0, done.err
        warning = next(line for line in done.err.splitlines() if line.startswith("Warning"))
        assert own in warning
        assert theirs in warning
        assert "restart milepost dev" in warning
    assert "Warning" not in here.run("session", "list").err
    for arguments in (["run", "Go"], ["turn", "send", session, "Go", "--detach"], ["doctor"]):
        refused = here.run(*arguments, "--config", own, "--json")
        assert (refused.code, refused.error()["code"]) == (2, "config_invalid"), refused.err
        assert theirs in refused.error()["message"]
    (folder / "milepost.yaml").unlink()
    begun = here.run("init")
    assert begun.code == 0
    assert "restart milepost dev" in begun.err


def test_what_does_not_exist_is_said_so(instance: Milepost, session: str) -> None:
    for arguments, code in (
        (["session", "show", "ses_0"], "session_not_found"),
        (["history", "ses_0"], "session_not_found"),
        (["turn", "show", "trn_0"], "turn_not_found"),
        (["turn", "watch", "trn_0"], "turn_not_found"),
        (["turn", "stop", "trn_0"], "turn_not_found"),
        (["session", "new", str(instance.folder / "none")], "invalid_input"),
    ):
        done = instance.run(*arguments, "--json")
        assert done.error()["code"] == code
        assert done.out == ""


def test_dev_stops_in_order_and_leaves_no_process(milepost: Milepost) -> None:
    with running(milepost, "dev") as process:
        children = _children(process.pid)
        assert any("temporal" in command for command in children.values())
        target = json.loads((milepost.home / "instance.json").read_text())["temporal_target"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    assert "Milepost is ready." in err
    assert "/api/v1/openapi.json" in out
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not (milepost.home / "instance.json").exists()
    assert not (milepost.home / "api.sock").exists()
    host, _, port = target.rpartition(":")
    with socket.socket() as probe, pytest.raises(OSError):
        probe.connect((host, int(port)))


@pytest.mark.timeout(300)
def test_dev_that_is_killed_takes_its_temporal_server_along(milepost: Milepost) -> None:
    with running(milepost, "dev") as process:
        children = _children(process.pid)
        process.kill()
        process.communicate(timeout=SECONDS)
    deadline = time.monotonic() + SECONDS
    while [pid for pid in children if _alive(pid)] and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert not [pid for pid in children if _alive(pid)]


def _children(pid: int) -> dict[int, str]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found[int(path.parent.name)] = (path.parent / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
