"""The server: addresses, sockets, stopping, peers that do not read."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from api.server import ApiServer
from api.sockets import bind_unix
from milepost.domain.content import Content
from milepost.domain.errors import AddressUnavailable
from tests.api.readers import BEARER, Transcript, sse_events, ws_texts
from tests.api.readers import socket as live_socket
from tests.api.stack import TOKEN, Stack, running_stack


async def _until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_port_in_use_is_one_clear_error(stack: Stack) -> None:
    other = ApiServer(stack.app, port=stack.server.port)
    with pytest.raises(AddressUnavailable, match=f"127.0.0.1:{stack.server.port}: the port is in use") as caught:
        await other.start()
    assert "another port" in str(caught.value)
    await other.stop()
    assert (await stack.client.get("/health/live")).status_code == 200


@pytest.mark.parametrize(
    ("host", "port", "what"),
    [
        ("192.0.2.1", 0, "not one of this host"),
        ("x" * 300, 0, "no address of this host"),
    ],
)
async def test_an_address_of_another_host_is_refused(stack: Stack, host: str, port: int, what: str) -> None:
    with pytest.raises(AddressUnavailable, match=what):
        await ApiServer(stack.app, host=host, port=port).start()


async def test_all_addresses_of_a_name_are_served(stack: Stack) -> None:
    server = ApiServer(stack.app, host="localhost", port=0)
    await server.start()
    try:
        families = {item[0] for item in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
        served = 0
        async with httpx.AsyncClient(headers=BEARER) as client:
            for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "[::1]")):
                if family in families:
                    with suppress(httpx.ConnectError):
                        answer = await client.get(f"http://{address}:{server.port}/api/v1/instance")
                        served += answer.status_code == 200
        assert served >= 1
        assert server.url == f"http://localhost:{server.port}"
    finally:
        await server.stop()


async def test_the_unix_socket_is_private_and_replaces_a_dead_one(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    dead = bind_unix(path)
    dead.close()
    inode = path.stat().st_ino
    server = ApiServer(stack.app, host=None, uds=path)
    await server.start()
    assert server.url is None
    assert path.stat().st_ino != inode
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.with_name("api.sock~").exists()
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport, base_url="http://milepost", headers=BEARER) as client:
        assert (await client.get("/api/v1/instance")).status_code == 200
    second = ApiServer(stack.app, host=None, uds=path)
    with pytest.raises(AddressUnavailable, match="Another process listens"):
        await second.start()
    await server.stop()
    assert not path.exists()


async def test_a_socket_that_another_process_took_over_is_left_alone(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    server = ApiServer(stack.app, host=None, uds=path)
    await server.start()
    path.unlink()
    other = bind_unix(path)
    await server.stop()
    assert path.exists()
    other.close()


async def test_a_socket_path_that_is_too_long_is_refused(stack: Stack, tmp_path: Path) -> None:
    server = ApiServer(stack.app, port=0, uds=tmp_path / ("x" * 120))
    with pytest.raises(AddressUnavailable, match="too long"):
        await server.start()
    # Nothing is served then, neither over TCP.
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_signals_belong_to_the_owner_of_the_process(stack: Stack) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = ApiServer(stack.app, port=0)
    await server.start()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    await server.stop()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


async def test_streams_end_when_the_server_stops(sqlite_url: str, tmp_path: Path) -> None:
    async with running_stack(sqlite_url, tmp_path) as stack:
        session = await stack.open_session()
        ends: list[Any] = []

        async def read_ws() -> None:
            async with live_socket(stack, session) as connection:
                with pytest.raises(ConnectionClosed) as closed:
                    while True:
                        await connection.recv()
                ends.append(closed.value.rcvd and closed.value.rcvd.code)

        async def read_sse() -> None:
            frames = [name async for _, name, _ in sse_events(stack.client, session)]
            ends.append(frames)

        readers = [asyncio.create_task(read()) for read in (read_ws, read_sse, read_ws, read_sse)]
        await _until(lambda: stack.app.state.live_readers.count == 4)
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await stack.server.stop(grace_seconds=20)
        # Far from the 20 s that streams would hold it up for.
        assert loop.time() - started < 10
        await asyncio.wait_for(asyncio.gather(*readers), 20)
        assert sorted(ends, key=str) == [1012, 1012, ["snapshot", "event"], ["snapshot", "event"]]
        assert stack.app.state.live_readers.count == 0
        await stack.server.stop()
        with pytest.raises(httpx.ConnectError):
            await stack.client.get("/health/live")
        # The same application can be served again.
        again = ApiServer(stack.app, port=0)
        await again.start()
        async with connect(
            f"ws://127.0.0.1:{again.port}/api/v1/ws?session={session}", additional_headers=BEARER
        ) as connection:
            assert json.loads(await connection.recv())["type"] == "snapshot"
        await again.stop(1.0)


async def test_a_request_in_flight_is_answered_and_one_without_end_is_cut(sqlite_url: str, tmp_path: Path) -> None:
    async with running_stack(sqlite_url, tmp_path) as stack:
        release = asyncio.Event()
        entered = 0

        async def slow() -> dict[str, str]:
            nonlocal entered
            entered += 1
            await release.wait()
            return {"done": "yes"}

        stack.app.add_api_route("/slow", slow)
        answered = asyncio.create_task(stack.client.get("/slow"))
        await _until(lambda: entered == 1)
        stopping = asyncio.create_task(stack.server.stop(grace_seconds=20))
        await asyncio.sleep(0.3)
        assert not stopping.done()
        release.set()
        assert (await answered).json() == {"done": "yes"}
        await asyncio.wait_for(stopping, 20)

        release.clear()
        again = ApiServer(stack.app, port=0)
        await again.start()
        cut = asyncio.create_task(stack.client.get(f"{again.url}/slow"))
        await _until(lambda: entered == 2)
        await asyncio.wait_for(again.stop(grace_seconds=0.2), 20)
        answer = await cut
        assert (answer.status_code, answer.json()["code"]) == (503, "stopping")


async def _fill(stack: Stack) -> tuple[str, str, int]:
    """A Session with more events than any buffer between server and client holds."""
    session = await stack.open_session()
    turn = await stack.begin(session)
    work = stack.work(session, turn["turn_id"])
    await work.start_agent()
    for _ in range(120):
        await work.run_tool(Content("z" * 250_000))
    await work.end()
    return session, work.turn_id, 120


def _reluctant_socket() -> socket.socket:
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.setblocking(False)
    return opened


async def test_a_peer_that_does_not_read_is_cut_off_and_can_resume(sqlite_url: str, tmp_path: Path) -> None:
    async with running_stack(sqlite_url, tmp_path, write_seconds=0.5) as stack:
        session, turn_id, tools = await _fill(stack)
        readers = stack.app.state.live_readers
        loop = asyncio.get_running_loop()

        for kind in ("sse", "ws"):
            client = _reluctant_socket()
            await loop.sock_connect(client, ("127.0.0.1", stack.server.port))
            path = f"/api/v1/sessions/{session}/events" if kind == "sse" else f"/api/v1/ws?session={session}"
            upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" + (
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            )
            head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            await loop.sock_sendall(client, (head + (upgrade if kind == "ws" else "") + "\r\n").encode())
            await _until(lambda: readers.count == 1)
            await _until(lambda: readers.count == 0)
            client.close()

        transcript = Transcript()
        cursor = "0"
        for text in await ws_texts(stack, session, cursor, until_turn=turn_id):
            transcript.apply(json.loads(text))
        assert transcript.types.count("tool.finished") == tools


async def test_a_slow_download_is_cut_off_too(sqlite_url: str, tmp_path: Path) -> None:
    async with running_stack(sqlite_url, tmp_path, write_seconds=0.5) as stack:
        session = await stack.open_session()
        turn = await stack.begin(session)
        work = stack.work(session, turn["turn_id"])
        await work.start_agent()
        full = await stack.services.contents.store("q" * 20_000_000)
        tool = await work.run_tool(Content("short"), full)
        loop = asyncio.get_running_loop()
        client = _reluctant_socket()
        await loop.sock_connect(client, ("127.0.0.1", stack.server.port))
        server = stack.server._server
        assert server is not None
        before = len(server.server_state.connections)
        head = f"GET /api/v1/effects/{tool}/output HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        await loop.sock_sendall(client, head.encode())
        await _until(lambda: len(server.server_state.connections) == before + 1)
        await _until(lambda: len(server.server_state.connections) == before)
        client.close()


def test_nothing_is_made_at_import() -> None:
    code = "import api.app, api.server, threading, asyncio; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "1"
