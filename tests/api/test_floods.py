"""Callers without a token who take what they can get: connections, time, memory."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from api.connections import MAX_REFUSED, MAX_TCP, MAX_UNIX, Connections
from api.limits import MAX_OPEN_BODY_BYTES
from tests.api.readers import BEARER
from tests.api.readers import socket as live_socket
from tests.api.stack import Stack, running_stack

HOST = b"Host: localhost\r\n"
LONG_HEAD = 600.0


async def _connect(stack: Stack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", stack.server.port)


async def _ends(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server closes or aborts the connection."""
    data = b""
    with suppress(ConnectionError):
        while piece := await asyncio.wait_for(reader.read(65536), 20):
            data += piece
    return data


async def _silence(_: asyncio.StreamWriter) -> None:
    pass


async def _half_a_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET / HTTP/1.1\r\n" + HOST)


async def _drips(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET / HTTP/1.1\r\n")
    with suppress(ConnectionError):
        for _ in range(400):
            writer.write(b"X-More: 1\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)


async def _half_a_second_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    await asyncio.sleep(0.1)
    writer.write(b"GET / HT")


async def _half_a_body_that_was_refused(writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST /api/v1/sessions HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n")
    await asyncio.sleep(0.1)
    writer.write(b"x")


@pytest.mark.parametrize("tactic", [_silence, _half_a_head, _drips, _half_a_second_head, _half_a_body_that_was_refused])
async def test_a_connection_without_a_request_is_cut(
    sqlite_url: str, tmp_path: Path, tactic: Callable[[asyncio.StreamWriter], Awaitable[None]]
) -> None:
    async with running_stack(sqlite_url, tmp_path, head_seconds=0.3) as stack:
        reader, writer = await _connect(stack)
        sending = asyncio.ensure_future(tactic(writer))
        await _ends(reader)
        sending.cancel()
        writer.close()
        assert stack.server._server is not None
        assert len(stack.server._server.server_state.connections) == 0


async def test_requests_and_streams_outlast_the_time_for_a_head(sqlite_url: str, tmp_path: Path) -> None:
    async with running_stack(sqlite_url, tmp_path, head_seconds=0.2) as stack:

        async def slow() -> dict[str, str]:
            await asyncio.sleep(0.6)
            return {"done": "yes"}

        stack.app.add_api_route("/slow", slow)
        session = await stack.open_session()
        async with live_socket(stack, session) as connection:
            assert json.loads(await connection.recv())["type"] == "snapshot"
            assert (await stack.client.get("/slow")).json() == {"done": "yes"}
            assert json.loads(await connection.recv())["type"] == "event"
            # A connection that is kept alive between requests waits longer.
            stream = (await stack.client.get("/health/live")).extensions["network_stream"]
            port = stream.get_extra_info("client_addr")
            await asyncio.sleep(0.5)
            again = (await stack.client.get("/health/live")).extensions["network_stream"]
            assert again.get_extra_info("client_addr") == port
            await connection.ping()


async def test_too_many_on_tcp_leave_the_unix_socket_alone(sqlite_url: str, tmp_path: Path) -> None:
    uds = tmp_path / "api.sock"
    limits = Connections(max_tcp=3, max_unix=3)
    async with running_stack(sqlite_url, tmp_path, uds=uds, connections=limits, head_seconds=LONG_HEAD) as stack:
        held = [await _connect(stack) for _ in range(3)]
        refused = await stack.client.get("/health/live")
        assert refused.status_code == 503
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        assert (await stack.client.get("/api/v1/ws?session=ses_x", headers=upgrade | key)).status_code == 503

        transport = httpx.AsyncHTTPTransport(uds=str(uds))
        async with httpx.AsyncClient(transport=transport, base_url="http://milepost", headers=BEARER) as local:
            assert (await local.get("/api/v1/instance")).status_code == 200

        held += [await _connect(stack) for _ in range(MAX_REFUSED + 5)]
        # The last ones are cut at once, although nothing else would end them here.
        await _ends(held[-1][0])
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(20):
            while (await stack.client.get("/health/live")).status_code != 200:
                await asyncio.sleep(0.05)


async def test_a_closed_websocket_gives_its_place_back(sqlite_url: str, tmp_path: Path) -> None:
    limits = Connections(max_tcp=2)
    async with running_stack(sqlite_url, tmp_path, connections=limits, head_seconds=LONG_HEAD) as stack:
        session = await stack.open_session()
        for _ in range(4):
            async with live_socket(stack, session) as connection:
                assert json.loads(await connection.recv())["type"] == "snapshot"
                async with httpx.AsyncClient(base_url=stack.url) as third:
                    assert (await third.get("/health/live")).status_code == 503


@pytest.mark.parametrize(("soft", "tcp", "unix"), [(256, 96, 16), (1024, 480, 138), (20_000, MAX_TCP, MAX_UNIX)])
def test_connections_leave_descriptors_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, soft: int, tcp: int, unix: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    limits = Connections.for_this_process()
    assert (limits.max_tcp, limits.max_unix) == (tcp, unix)
    assert tcp + unix + 2 * MAX_REFUSED <= soft * 0.7
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert Connections.for_this_process() == Connections()


@pytest.mark.parametrize("announced", [True, False])
async def test_routes_without_credentials_take_small_bodies_only(stack: Stack, announced: bool) -> None:
    body = json.dumps({"token": "x", "pad": "y" * MAX_OPEN_BODY_BYTES}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    async with httpx.AsyncClient(base_url=stack.url) as anyone:
        headers = {"Content-Type": "application/json"}
        answer = await anyone.post("/api/v1/login", content=body if announced else pieces(), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
        assert f"{MAX_OPEN_BODY_BYTES} bytes" in answer.json()["detail"]
    long = await stack.post("/api/v1/sessions", {"workspace": str(stack.root), "title": "z" * MAX_OPEN_BODY_BYTES})
    assert long.status_code != 413


async def test_the_longest_token_fits_a_login(stack: Stack) -> None:
    stack.access.token = "t" * 512
    async with httpx.AsyncClient(base_url=stack.url) as anyone:
        assert (await anyone.post("/api/v1/login", json={"token": "t" * 512})).status_code == 204
        too_long = await anyone.post("/api/v1/login", json={"token": "\U0001f600" * 513})
        assert (too_long.status_code, too_long.json()["field"]) == (422, "token")
