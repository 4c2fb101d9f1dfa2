"""Temporal is away: reads work, turns wait, and what waited runs when it is back."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from milepost.temporal.dev_server import DevServer
from tests.cli.conftest import SECONDS, Milepost, running
from tests.security.instances import Instance

pytestmark = pytest.mark.slow

SHORT = 'responses: [{text: "All is well."}]'
LONG = 'responses: [{text: "' + "word " * 60 + '", delay: 0.05}]'


class Cluster:
    """A Temporal of its own process, on one port and one store, that a test switches on and off."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._server = DevServer(folder / "cluster.db", folder / "cluster.log", port=self.port)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def on(self) -> None:
        address = asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(SECONDS)
        assert address.target == f"127.0.0.1:{self.port}"

    def off(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(SECONDS)


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.off()


def _reads_work(instance: Instance, session: str, turns: int) -> None:
    assert session in [found["session_id"] for found in instance.get("/sessions")["sessions"]]
    assert instance.get(f"/sessions/{session}")["session_id"] == session
    assert len(instance.history(session)) == turns
    assert instance.call("GET", "/health/live").status_code == 200
    ready = instance.call("GET", "/health/ready")
    assert ready.status_code == 503
    assert [check["ok"] for check in ready.json()["checks"] if check["name"] == "temporal"] == [False]


def _waits(instance: Instance, turn: str) -> None:
    found = instance.turn(turn)
    assert (found["state"], found["status"]) == ("running", "waiting")


def test_a_cluster_that_is_down_at_the_start_and_later(milepost: Milepost, tmp_path: Path) -> None:
    with cluster(tmp_path) as temporal:
        milepost.configure(
            f"temporal: {{address: '127.0.0.1:{temporal.port}'}}\nsandbox: {{backend: none}}\napi: {{port: 0}}\n"
        )
        with running(milepost, "dev"), Instance(milepost) as instance:
            session = instance.open(milepost.folder)
            first = instance.begin(session, script=SHORT)
            _waits(instance, first)
            _reads_work(instance, session, 1)
            shown = milepost.run("history", session, "--json").json()["turns"]
            assert [turn["status"] for turn in shown] == ["waiting"]

            temporal.on()
            assert instance.ended(first)["state"] == "completed"
            assert instance.call("GET", "/health/ready").status_code == 200

            temporal.off()
            second = instance.begin(session, script=SHORT)
            instance.until(second, lambda _: _refused(temporal.port))
            _waits(instance, second)
            _reads_work(instance, session, 2)

            temporal.on()
            assert instance.ended(second)["state"] == "completed"
            assert [turn["output"] for turn in instance.history(session)] == ["All is well."] * 2


def _refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_embedded_server_is_killed_in_mid_turn(milepost: Milepost) -> None:
    with running(milepost, "dev") as process, Instance(milepost) as instance:
        session = instance.open(milepost.folder)
        turn = instance.begin(session, script=LONG)
        assert instance.first_text(session)
        for pid in _temporal_servers(process.pid):
            os.kill(pid, signal.SIGKILL)
        assert session in [found["session_id"] for found in instance.get("/sessions")["sessions"]]
        assert len(instance.history(session)) == 1
        done: Any = instance.ended(turn)
        assert done["state"] == "completed", done
        assert instance.output(turn) == "word " * 60
        after = instance.ended(instance.begin(session, script=SHORT))
        assert after["state"] == "completed"


def _temporal_servers(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = path.read_text().rpartition(")")[::2]
        except OSError:
            continue
        if int(fields.split()[1]) == parent and name.endswith("(temporal"):
            found.append(int(path.parent.name))
    assert found, "the instance has a Temporal server"
    return found
