"""The parts apart: `milepost api` and `milepost worker` on PostgreSQL and a Temporal cluster."""

from __future__ import annotations

import pytest

from milepost.temporal.client import TemporalAddress
from tests.cli.conftest import Milepost, running

# A dozen processes are started one after the other, each of which takes seconds of a busy machine.
pytestmark = [pytest.mark.postgres, pytest.mark.timeout(400)]


def configure(milepost: Milepost, url: str, temporal: TemporalAddress) -> None:
    milepost.configure(
        f"database: {{url: 'env:TEST_DATABASE'}}\n"
        f"temporal: {{address: '{temporal.target}', ui_url: 'http://temporal.example/'}}\n"
        "sandbox: {backend: none}\napi: {port: 0}\n"
    )
    milepost.environment = {"TEST_DATABASE": url}


@pytest.mark.slow
def test_a_turn_goes_through_separate_processes(
    milepost: Milepost, empty_postgres_url: str, temporal_address: TemporalAddress
) -> None:
    configure(milepost, empty_postgres_url, temporal_address)
    outdated = milepost.run("api", "--json")
    assert (outdated.code, outdated.error()["code"]) == (5, "schema_outdated")
    assert "milepost db upgrade" in outdated.error()["fix"]
    assert milepost.run("db", "upgrade").code == 0

    with running(milepost, "api") as api:
        second = milepost.run("api", "--json")
        assert (second.code, second.error()["code"]) == (4, "instance_locked")
        assert str(api.pid) in second.error()["message"]
        script = milepost.script('responses: [{text: "Done apart."}]')
        session = milepost.run("session", "new").out.strip()
        waiting = milepost.run("turn", "send", session, "Go", "--script", script, "--detach", "--json").json()
        assert (waiting["state"], waiting["status"]) == ("running", "waiting"), "accepted, though nobody works yet"
        with milepost.working("--queue", "turns", "--queue", "models") as first, milepost.working() as second:
            watched = milepost.run("turn", "watch", waiting["turn_id"])
            assert watched.code == 0, watched.err
            assert "Done apart." in watched.out
            turn = milepost.run("turn", "show", waiting["turn_id"], "--json").json()
            assert turn["temporal_url"].startswith("http://temporal.example/namespaces/default/workflows/")
            checks = {check["name"]: check for check in milepost.run("doctor", "--json").json()["checks"]}
            assert checks["temporal"]["ok"]
            assert "PostgreSQL" in checks["database"]["detail"]
    said = first.read_text() + second.read_text()
    assert empty_postgres_url.rpartition("@")[0] not in said


def test_an_unknown_queue_is_refused(milepost: Milepost) -> None:
    milepost.configure("database: {url: 'postgresql://nobody@127.0.0.1:1/x'}\ntemporal: {address: '127.0.0.1:1'}\n")
    done = milepost.run("worker", "--queue", "modles", "--json")
    assert (done.code, done.error()["code"]) == (2, "config_invalid")
    assert "turns, models, sandbox" in done.error()["fix"]
