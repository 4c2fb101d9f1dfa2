"""Terminals over the API: opened, listed, read, attached to by several viewers, resumed, refused, ended."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from milepost.domain.environments import EnvironmentState
from milepost.ports.ledger import WorkerBeat
from milepost.ports.sandbox import TERMINAL_BYTES, ProcessEnd, TerminalSize
from tests.api.stack import HOST, TOKEN, Stack
from tests.support.processes import MemoryProcess

BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def opened(stack: Stack, **fields: Any) -> tuple[str, str]:
    session = await stack.open_session()
    response = await stack.post(f"/api/v1/sessions/{session}/terminals", fields)
    assert response.status_code == 201, response.text
    return session, str(response.json()["terminal_id"])


def process(stack: Stack, session: str, terminal: str) -> MemoryProcess:
    return stack.sandboxes.by_session[session].spawned[terminal]


def attach(stack: Stack, session: str, terminal: str, query: str = "", **options: Any) -> connect:
    address = stack.url.replace("http://", "ws://")
    options.setdefault("additional_headers", BEARER)
    return connect(f"{address}/api/v1/sessions/{session}/terminals/{terminal}/ws{query}", **options)


async def message(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(20):
        text = await socket.recv()
    assert isinstance(text, str), text
    return dict(json.loads(text))


async def output(socket: ClientConnection) -> bytes:
    async with asyncio.timeout(20):
        data = await socket.recv()
    assert isinstance(data, bytes), data
    return data


async def test_a_terminal_is_opened_listed_read_and_ended(stack: Stack) -> None:
    session, terminal = await opened(stack, rows=30, columns=90, actor="ann")
    path = f"/api/v1/sessions/{session}/terminals"
    shape = (await stack.client.get(f"{path}/{terminal}")).json()
    assert (shape["running"], shape["kind"], shape["command"], shape["host"]) == (True, "terminal", None, HOST)
    assert shape["started_by"] == "api:ann"
    await stack.services.processes.write(session, terminal, b"typed")
    process(stack, session, terminal).say(b"\xff$ ")
    read = (await stack.client.get(f"{path}/{terminal}/output")).json()
    assert base64.b64decode(read["data"]) == b"typed\xff$ "
    assert (read["next_offset"], read["running"]) == (8, True)
    ended = await stack.post(f"{path}/{terminal}/kill", {"actor": "ann"})
    assert (ended.json()["running"], ended.json()["ended_by"]) == (False, "ended")
    assert (await stack.post(f"{path}/{terminal}/kill", {})).json() == ended.json()
    assert [each["terminal_id"] for each in (await stack.client.get(path)).json()["terminals"]] == [terminal]
    events = await stack.ledger.read(lambda tx: tx.events.read(session))
    assert [event.type for event in events if event.type.startswith("process.")] == ["process.started", "process.ended"]
    assert not any(b"typed" in event.payload for event in events)


async def test_viewers_share_a_terminal_and_resume_where_they_were(stack: Stack) -> None:
    session, terminal = await opened(stack)
    async with (
        attach(stack, session, terminal) as first,
        attach(stack, session, terminal, "?rows=40&columns=120") as two,
    ):
        assert (await message(first))["offset"] == 0
        assert (await message(two))["terminal"]["terminal_id"] == terminal
        assert process(stack, session, terminal).info.terminal == TerminalSize(40, 120)
        await first.send(b"ls\r")
        assert await output(first) == await output(two) == b"ls\r"
        await two.send(json.dumps({"type": "resize", "rows": 50, "columns": 132}))
        await two.send("nonsense")
        assert (await message(two))["code"] == "invalid_input"
        assert process(stack, session, terminal).info.terminal == TerminalSize(50, 132)
    process(stack, session, terminal).say(b"while away")
    async with attach(stack, session, terminal, "?offset=3") as third:
        assert (await message(third))["offset"] == 3
        assert await output(third) == b"while away"
        process(stack, session, terminal).finish(ProcessEnd.EXIT, 4)
        assert await message(third) == {"type": "ended", "exit_code": 4, "ended_by": "exit", "offset": 13}
        with pytest.raises(ConnectionClosed) as closed:
            await third.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000
    shape = (await stack.client.get(f"/api/v1/sessions/{session}/terminals/{terminal}")).json()
    assert (shape["exit_code"], shape["running"]) == (4, False)


async def test_what_a_viewer_missed_is_a_gap(stack: Stack) -> None:
    session, terminal = await opened(stack)
    process(stack, session, terminal).say(b"x" * (TERMINAL_BYTES + 100))
    async with attach(stack, session, terminal, "?offset=10") as socket:
        assert (await message(socket))["offset"] == 100
        assert await message(socket) == {"type": "gap", "bytes": 90, "offset": 100}
        assert len(await output(socket)) == TERMINAL_BYTES


async def test_strangers_and_what_is_not_there_are_refused(stack: Stack) -> None:
    session, terminal = await opened(stack)
    foreign = {**BEARER, "Origin": "https://evil.example"}
    with pytest.raises(InvalidStatus) as refused:
        await attach(stack, session, terminal, additional_headers=foreign)
    assert refused.value.response.status_code == 403
    for place, query, code in (
        ((session, terminal), "", 4401),
        ((session, "prc_" + "0" * 32), "", 4404),
        ((session, "nonsense"), "", 4404),
        ((await stack.open_session(), terminal), "", 4404),
        ((session, terminal), "?offset=x", 4422),
    ):
        headers = {} if code == 4401 else BEARER
        async with attach(stack, *place, query, additional_headers=headers) as socket:
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await asyncio.wait_for(socket.recv(), 20)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == code
    assert (await stack.client.get(f"/api/v1/sessions/{session}/terminals/x")).json()["code"] == "process_not_found"
    path = f"/api/v1/sessions/{session}/terminals"
    for body in ({"rows": 0}, {"lifetime": 86401}, {"command": 1}, {"size": 1}, {"command": "x" * 70_000}):
        assert (await stack.post(path, body)).status_code == 422, body


async def test_nothing_is_opened_unless_the_environment_is_ready(stack: Stack) -> None:
    session = await stack.open_session()
    (stack.root / "project" / "Cargo.lock").write_text("")
    response = await stack.post(f"/api/v1/sessions/{session}/terminals", {})
    assert response.status_code == 409
    assert response.json()["code"] == "environment_not_ready"
    assert EnvironmentState.AWAITING_APPROVAL.value.replace("_", " ") in response.json()["detail"].replace("_", " ")
    assert stack.sandboxes.by_session == {}


async def test_an_api_without_the_hosts_sandboxes_says_where_they_are(stack: Stack) -> None:
    session, terminal = await opened(stack)
    now = 2**62
    beat = WorkerBeat("w", "far", ("turns", "sandbox.far"), now)
    await stack.ledger.write(lambda tx: tx.workers.beat(beat))
    response = await stack.post(f"/api/v1/sessions/{session}/terminals", {})
    assert response.status_code == 503
    assert "far" in response.json()["fix"]
    stack.services.processes.host = "another"
    response = await stack.client.get(f"/api/v1/sessions/{session}/terminals/{terminal}/output")
    assert response.status_code == 503
    assert HOST in response.json()["detail"]


async def test_viewers_are_told_when_the_server_stops(stack: Stack) -> None:
    session, terminal = await opened(stack)
    async with attach(stack, session, terminal) as socket:
        await message(socket)
        stack.app.state.live_readers.drain()
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(socket.recv(), 20)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012
