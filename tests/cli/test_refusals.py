"""Bad machines and bad configurations get one clear sentence with a stable code, and nothing is half-created."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Milepost
from tests.support.needs import unavailable


def test_a_malformed_configuration_names_line_and_nearest_key(milepost: Milepost) -> None:
    milepost.configure("api:\n  prot: 1\n")
    done = milepost.run("run", "x", "--json")
    assert (done.code, done.out) == (2, "")
    found = done.error()
    assert found["code"] == "config_invalid"
    assert "milepost.yaml, line 2, column 3: 'api.prot'" in found["message"]
    assert found["fix"] == "Did you mean 'port'?"
    assert not milepost.home.exists()


@pytest.mark.parametrize("role", ["api", "worker"])
def test_separate_processes_are_refused_on_sqlite_and_without_a_cluster(milepost: Milepost, role: str) -> None:
    done = milepost.run(role, "--json")
    assert (done.code, done.error()["code"], done.error()["field"]) == (2, "config_invalid", "database.url")
    assert "milepost dev" in done.error()["fix"]
    milepost.configure("database: {url: 'postgresql://nobody@127.0.0.1:1/x'}\n")
    done = milepost.run(role, "--json")
    assert (done.code, done.error()["field"]) == (2, "temporal.address")
    assert not milepost.home.exists()


@pytest.mark.parametrize(
    ("arguments", "field", "named"),
    [
        (["run", "--json"], "request", "REQUEST"),
        (["session", "list", "--limit", "0", "--json"], "limit", "--limit"),
        (["effects", "list", "ses_1", "--limt", "3", "--json"], None, "--limt"),
        (["sesion", "--json"], None, "sesion"),
        (["approvals", "list", "--json", "--state", "x"], "state", "--state"),
    ],
)
def test_arguments_that_cannot_be_read_are_told_as_json_where_it_was_asked_for(
    milepost: Milepost, arguments: list[str], field: str | None, named: str
) -> None:
    done = milepost.run(*arguments)
    assert (done.code, done.out) == (2, "")
    found = done.error()
    assert (found["code"], found.get("field"), found["exit_code"]) == ("invalid_input", field, 2)
    assert named in found["message"]
    assert found["fix"].endswith("--help")
    plain = milepost.run(*[argument for argument in arguments if argument != "--json"])
    assert plain.code == 2
    assert named in plain.err
    assert "{" not in plain.err.splitlines()[-1]


def test_an_unknown_queue_is_told_before_anything_else(milepost: Milepost) -> None:
    done = milepost.run("worker", "--queue", "modles", "--json")
    assert (done.code, done.error()["field"]) == (2, "queue")
    assert "turns, models, sandbox" in done.error()["fix"]


def test_help_and_version_are_no_failures(milepost: Milepost) -> None:
    assert [milepost.run(*arguments).code for arguments in (["--version"], ["run", "--help"])] == [0, 0]


def test_a_database_that_does_not_answer(milepost: Milepost) -> None:
    milepost.configure("database: {url: 'postgresql://nobody@127.0.0.1:1/x'}\nsandbox: {backend: none}\n")
    done = milepost.run("session", "list", "--json")
    assert (done.code, done.error()["code"]) == (5, "storage_unavailable")


def test_an_unreachable_cluster(milepost: Milepost) -> None:
    milepost.configure("temporal: {address: '127.0.0.1:1'}\nsandbox: {backend: none}\n")
    done = milepost.run("run", "x", "--json")
    assert (done.code, done.error()["code"]) == (4, "temporal_unavailable")
    assert "127.0.0.1:1" in done.error()["message"]
    assert milepost.run("session", "list", "--json").json() == {"sessions": []}


def test_a_data_root_that_cannot_be_made(milepost: Milepost, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file" / "home", Path("/proc/milepost")):
        milepost.home = home
        done = milepost.run("run", "x", "--json")
        assert (done.code, done.error()["code"]) == (5, "storage_unavailable")
        assert str(home) in done.error()["message"]
        assert "MILEPOST_HOME" in done.error()["fix"]


def test_a_full_data_root(milepost: Milepost) -> None:
    milepost.home.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(milepost.home)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        unavailable("mounting a small file system", mounted.stderr.decode())
    try:
        done = milepost.run("run", "x", "--json")
        assert (done.code, done.error()["code"]) == (5, "storage_unavailable")
        assert "free space" in done.error()["message"]
        (milepost.home / "filler").write_bytes(b"\0" * 1024 * 1024)
        done = milepost.run("session", "new", "--json")
        assert (done.code, done.error()["code"]) == (5, "storage_unavailable")
        assert "full disk" in done.error()["message"]
    finally:
        subprocess.run(["umount", str(milepost.home)], check=True)


def test_a_newer_schema(milepost: Milepost) -> None:
    assert milepost.run("db", "upgrade", "--json").code == 0
    with sqlite3.connect(milepost.home / "milepost.db") as connection:
        connection.execute("UPDATE ledger_schema SET version_num = '9999'")
    for arguments in (["run", "x"], ["session", "list"], ["db", "upgrade"]):
        done = milepost.run(*arguments, "--json")
        assert (done.code, done.error()["code"]) == (5, "schema_too_new"), arguments
        assert "9999" in done.error()["message"]


def test_a_data_root_in_use_names_its_owner(milepost: Milepost) -> None:
    milepost.home.mkdir()
    handle = os.open(milepost.home / "instance.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, json.dumps({"pid": os.getpid(), "role": "dev"}).encode())
        done = milepost.run("dev", "--json")
    finally:
        os.close(handle)
    assert (done.code, done.error()["code"]) == (4, "instance_locked")
    assert f"milepost dev (pid {os.getpid()})" in done.error()["message"]


def test_a_workspace_may_not_hold_the_data_root(milepost: Milepost, tmp_path: Path) -> None:
    done = milepost.run("session", "new", str(tmp_path), "--json")
    assert (done.code, done.error()["code"]) == (2, "invalid_input")
    assert str(milepost.home) in done.error()["message"]


def test_init_never_overwrites(milepost: Milepost) -> None:
    (milepost.folder / "milepost.yaml").unlink()
    assert milepost.run("init").code == 0
    assert milepost.run("config", "validate", "--json").json()["ok"] is True
    before = (milepost.folder / "milepost.yaml").read_text()
    done = milepost.run("init", "--json")
    assert (done.code, done.error()["code"]) == (2, "invalid_input")
    assert (milepost.folder / "milepost.yaml").read_text() == before


def test_config_commands(milepost: Milepost) -> None:
    milepost.configure("api: {prot: 1}\nlogging: {level: LOUD}\n")
    done = milepost.run("config", "validate", "--json")
    assert done.code == 2
    assert [(item["line"], item["key"]) for item in done.json()["problems"]] == [(1, "api.prot"), (2, "logging.level")]
    milepost.configure("api: {port: 9}\n")
    assert milepost.run("config", "show", "--json").json()["api"]["port"] == 9
    assert "port: 9" in milepost.run("config", "show").out
    given = milepost.folder / "other.yaml"
    given.write_text("api: {port: 10}\n")
    assert milepost.run("config", "show", "--json", "--config", str(given)).json()["api"]["port"] == 10
    assert milepost.run("config", "schema").json()["properties"]["api"]
    assert milepost.run("config", "show", "--config", "missing.yaml").code == 2


def test_doctor_tells_everything_also_when_parts_are_broken(milepost: Milepost, tmp_path: Path) -> None:
    def checks() -> dict[str, dict[str, object]]:
        done = milepost.run("doctor", "--json")
        assert done.code == 1, done.err
        return {check["name"]: check for check in done.json()["checks"]}

    milepost.configure("database: {url: 'postgresql://nobody@127.0.0.1:1/x'}\nsandbox: {backend: none}\n")
    found = checks()
    assert {name for name, check in found.items() if not check["ok"]} == {"database"}
    assert {"configuration", "packages", "disk", "temporal", "sandbox", "model:default"} < found.keys()

    (tmp_path / "file").write_text("")
    home, milepost.home = milepost.home, tmp_path / "file" / "home"
    milepost.configure("sandbox: {backend: none}\n")
    assert {"checkpoints", "database", "disk"} == {name for name, check in checks().items() if not check["ok"]}

    milepost.home = home
    milepost.configure("api: {prot: 1}\n")
    found = checks()
    assert list(found) == ["configuration"]
    assert found["configuration"]["fix"] == "Did you mean 'port'?"
    assert "FAIL configuration" in milepost.run("doctor").out


@pytest.mark.parametrize(
    ("arguments", "code", "fix"),
    [
        (["memory", "put", "a/b", "x", "1"], "invalid_input", "without a slash"),
        (["memory", "search", "support", "x", "--filter", "team=docs"], "invalid_input", "--filter team='"),
        (["memory", "search", "missing", "x"], "namespace_not_found", None),
        (["skills", "show", "debuging"], "invalid_input", "Did you mean 'debugging'?"),
        (["session", "new", "--agent", "defualt"], "agent_unknown", "Did you mean 'default'? Known agents: default."),
    ],
)
def test_what_cannot_be_meant_is_told_with_what_to_write(
    milepost: Milepost, arguments: list[str], code: str, fix: str | None
) -> None:
    milepost.configure("")
    found = milepost.run(*arguments, "--json").error()
    assert found["code"] == code
    assert fix is None or fix in found["fix"]
