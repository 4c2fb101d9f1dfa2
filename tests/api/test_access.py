"""The gate over the wire: who may call, from where, with what."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from tests.api.stack import TOKEN, Stack, running_stack

BEARER = {"Authorization": f"Bearer {TOKEN}"}
WRONG = "w" * 43
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    root = tmp_path_factory.mktemp("access")
    path = root / "ledger.db"
    shutil.copyfile(sqlite_template, path)
    options = {"allowed_hosts": ["work.example"], "allowed_origins": ["https://work.example"]}
    async with running_stack(f"sqlite:///{path}", root, uds=root / "api.sock", **options) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def anyone(served: Stack) -> AsyncIterator[httpx.AsyncClient]:
    """A client without credentials."""
    async with httpx.AsyncClient(base_url=served.url, timeout=20) as client:
        yield client


def _own(served: Stack) -> str:
    return f"http://127.0.0.1:{served.server.port}"


@pytest.mark.parametrize("path", ["/", "/health/live", "/api/v1/openapi.json"])
async def test_what_is_open(anyone: httpx.AsyncClient, path: str) -> None:
    assert (await anyone.get(path)).status_code == 200


async def test_everything_else_needs_credentials(served: Stack, anyone: httpx.AsyncClient) -> None:
    closed = 0
    for path, operations in served.app.openapi()["paths"].items():
        for method, operation in operations.items():
            if "security" not in operation:
                continue
            closed += 1
            url = path.replace("{session_id}", "ses_x").replace("{turn_id}", "trn_x").replace("{effect_id}", "e")
            response = await anyone.request(method, url)
            assert response.status_code == 401, (method, path)
            assert response.json()["code"] == "unauthorized"
            assert response.headers["www-authenticate"].startswith("Bearer")
    assert closed >= 18
    assert (await anyone.get("/nope")).status_code == 401


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer   {TOKEN}", 200),
        (f"Bearer {WRONG}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Bearer", 401),
        (TOKEN, 401),
        (f"Basic {TOKEN}", 401),
        ("Bearer \xe4", 401),
    ],
)
async def test_tokens(anyone: httpx.AsyncClient, authorization: str, status: int) -> None:
    headers = [(b"Authorization", authorization.encode("latin-1"))]
    response = await anyone.get("/api/v1/instance", headers=headers)
    assert response.status_code == status
    assert TOKEN not in response.text


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("[::1]:1", True),
        ("work.example", True),
        ("evil.example", False),
        ("milepost", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
async def test_hosts(served: Stack, anyone: httpx.AsyncClient, host: str, allowed: bool) -> None:
    for path in ("/api/v1/instance", "/", "/health/live"):
        response = await anyone.get(path, headers=BEARER | {"Host": host})
        assert response.status_code == (200 if allowed else 403), path
        if not allowed:
            assert response.json()["code"] == "host_not_allowed"
    if not host:
        return
    url = f"ws://{host}/api/v1/ws?session=ses_none"
    where: dict[str, Any] = {"host": "127.0.0.1", "port": served.server.port}
    try:
        async with connect(url, additional_headers=BEARER, **where) as socket:
            assert json.loads(await socket.recv())["data"]["code"] == "session_not_found"
        opened = True
    except InvalidStatus as error:
        assert error.response.status_code == 403
        assert json.loads(error.response.body or b"")["code"] == "host_not_allowed"
        opened = False
    assert opened is allowed


async def test_two_origins_are_none(served: Stack, anyone: httpx.AsyncClient) -> None:
    own = _own(served).encode()
    twice = [(b"Authorization", BEARER["Authorization"].encode()), (b"Origin", own), (b"Origin", own)]
    assert (await anyone.get("/api/v1/instance", headers=twice)).status_code == 403


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("own", True),
        ("https://work.example", True),
        ("http://localhost:3000", False),
        ("https://evil.example", False),
        ("null", False),
    ],
)
async def test_origins(served: Stack, anyone: httpx.AsyncClient, origin: str, allowed: bool) -> None:
    origin = _own(served) if origin == "own" else origin
    for method, path in (("GET", "/api/v1/instance"), ("GET", "/"), ("POST", "/api/v1/logout")):
        response = await anyone.request(method, path, headers=BEARER | {"Origin": origin})
        assert response.is_success is allowed, path
        if not allowed:
            assert (response.status_code, response.json()["code"]) == (403, "origin_not_allowed")
    try:
        async with connect(
            f"{served.ws_url}?session=ses_none", additional_headers=BEARER, origin=Origin(origin)
        ) as socket:
            assert json.loads(await socket.recv())["data"]["code"] == "session_not_found"
        opened = True
    except InvalidStatus as error:
        assert error.response.status_code == 403
        assert json.loads(error.response.body or b"")["code"] == "origin_not_allowed"
        opened = False
    assert opened is allowed


async def _close_code(url: str, **options: Any) -> int | None:
    async with connect(url, **options) as socket:
        try:
            while True:
                await socket.recv()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code


async def test_sockets_need_credentials(served: Stack) -> None:
    url = f"{served.ws_url}?session=ses_none"
    accepted = 4404
    assert await _close_code(url) == 4401
    assert await _close_code(url, additional_headers={"Authorization": f"Bearer {WRONG}"}) == 4401
    assert await _close_code(url, additional_headers={"Cookie": "milepost_x=1"}) == 4401
    assert await _close_code(url, additional_headers=BEARER) == accepted
    assert await _close_code(url, subprotocols=["milepost.v1"]) == 4401
    assert await _close_code(url, subprotocols=["milepost.v1", f"milepost.bearer.{WRONG}"]) == 4401
    assert await _close_code(url, subprotocols=[f"milepost.bearer.{TOKEN}"]) == accepted
    async with connect(url, subprotocols=["milepost.v1", f"milepost.bearer.{TOKEN}"]) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == "milepost.v1"


async def test_a_browser_logs_in_and_out(served: Stack, anyone: httpx.AsyncClient) -> None:
    own = {"Origin": _own(served)}
    answer = await anyone.post("/api/v1/login", json={"token": TOKEN}, headers=own)
    assert (answer.status_code, answer.content) == (204, b"")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/" in cookie
    assert TOKEN not in cookie
    name, value = cookie.split(";")[0].split("=", 1)
    assert name.startswith("milepost_")
    assert dict(anyone.cookies) == {name: value}

    assert (await anyone.get("/api/v1/instance")).status_code == 200
    stop = "/api/v1/turns/trn_none/stop"
    assert (await anyone.post(stop, headers=own)).status_code == 404
    foreign = await anyone.post(stop)
    assert (foreign.status_code, foreign.json()["code"]) == (403, "origin_not_allowed")
    # Another port of the host is the same site: the browser sends the cookie, and says where the request is from.
    for site, status in (("same-site", 403), ("cross-site", 403), ("same-origin", 200), ("none", 200)):
        assert (await anyone.get("/api/v1/instance", headers={"Sec-Fetch-Site": site})).status_code == status
    wrong = await anyone.get("/api/v1/instance", headers={"Authorization": f"Bearer {WRONG}"})
    assert wrong.status_code == 401

    url = f"{served.ws_url}?session=ses_none"
    jar = {"Cookie": f"other=1; {name}={value}"}
    assert await _close_code(url, additional_headers=jar, origin=_own(served)) == 4404
    with pytest.raises(InvalidStatus) as refused:
        await _close_code(url, additional_headers=jar)
    assert refused.value.response.status_code == 403

    out = await anyone.post("/api/v1/logout", headers=own)
    assert out.status_code == 204
    assert "Max-Age=0" in out.headers["set-cookie"]
    assert (await anyone.get("/api/v1/instance", headers={"Cookie": f"{name}={value}"})).status_code == 401
    assert (await anyone.post("/api/v1/logout", headers=own)).status_code == 204


async def test_failed_logins_are_limited(served: Stack, anyone: httpx.AsyncClient) -> None:
    for _ in range(10):
        answer = await anyone.post("/api/v1/login", json={"token": WRONG})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    limited = await anyone.post("/api/v1/login", json={"token": WRONG})
    assert (limited.status_code, limited.json()["code"]) == (429, "too_many_attempts")
    assert 0 < int(limited.headers["retry-after"]) <= 61
    # Whoever fails keeps nobody out who has the token.
    assert (await anyone.post("/api/v1/login", json={"token": TOKEN})).status_code == 204
    assert (await anyone.get("/api/v1/instance", headers=BEARER)).status_code == 200
    transport = httpx.AsyncHTTPTransport(uds=str(served.root / "api.sock"))
    async with httpx.AsyncClient(transport=transport, base_url="http://milepost") as local:
        assert (await local.post("/api/v1/login", json={"token": TOKEN})).status_code == 204


async def test_the_unix_socket_has_the_same_gate(served: Stack) -> None:
    transport = httpx.AsyncHTTPTransport(uds=str(served.root / "api.sock"))
    async with httpx.AsyncClient(transport=transport, base_url="http://milepost") as local:
        assert (await local.get("/api/v1/instance")).status_code == 401
        assert (await local.get("/api/v1/instance", headers=BEARER)).status_code == 200
        assert (await local.get("/api/v1/instance", headers=BEARER | {"Host": "evil.example"})).status_code == 403
        assert (await local.get("http://localhost/api/v1/instance", headers=BEARER)).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/v1/instance", "/nope", "/api/v1/sessions?limit=0"])
async def test_headers_of_every_response(anyone: httpx.AsyncClient, path: str) -> None:
    for credentials in ({}, BEARER):
        headers = (await anyone.get(path, headers=credentials)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
        assert "server" not in headers


async def test_the_page_asks_for_nothing_else(anyone: httpx.AsyncClient) -> None:
    page = await anyone.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for word in ("src=", "@import", "<script", "<link", "url("):
        assert word not in page.text
    assert "/api/v1/openapi.json" in page.text
    assert "milepost doctor" in page.text
