"""Bad input: a clear sentence, a stable code, the field, nothing created."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
from starlette.exceptions import HTTPException

from api.limits import BodyLimit
from tests.api.stack import TOKEN, Stack, running_stack

EFFECT = "a" * 64
LONG_NAME = "x" * 501

BODIES: list[tuple[str, Any, int, str, str | None]] = [
    ("/api/v1/sessions", {}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", [], 422, "invalid_input", None),
    ("/api/v1/sessions", "text", 422, "invalid_input", None),
    ("/api/v1/sessions", None, 422, "invalid_input", None),
    ("/api/v1/sessions", {"workspace": 5}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": True}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": "relative/path"}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": ""}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": "/"}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": "/no/such/folder"}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": "/dev/null"}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": "/tmp\0x"}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": "/tmp/\ud800"}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": "/" + "x" * 5000}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": "/" + "x" * 4000}, 422, "invalid_input", "workspace"),
    ("/api/v1/sessions", {"workspace": "/tmp", "titel": "x"}, 422, "invalid_input", "titel"),
    ("/api/v1/sessions", {"workspace": "/tmp", "title": "x" * 1001}, 422, "invalid_input", "title"),
    ("/api/v1/sessions", {"workspace": "/tmp", "agents": ["nobody"]}, 404, "agent_unknown", "agents"),
    ("/api/v1/sessions", {"workspace": "/tmp", "agents": ["coder", "coder"]}, 422, "invalid_input", "agents"),
    ("/api/v1/sessions", {"workspace": "/tmp", "agents": "coder"}, 422, "invalid_input", "agents"),
    ("/api/v1/sessions", {"workspace": "/tmp", "agents": [1]}, 422, "invalid_input", "agents.0"),
    ("/api/v1/sessions", {"workspace": "/tmp", "agents": ["coder"] * 33}, 422, "invalid_input", "agents"),
    ("/api/v1/sessions", {"workspace": "/tmp", "mode": "double"}, 422, "invalid_input", "mode"),
    ("/api/v1/sessions", {"workspace": "/tmp", "mode": "coordinator"}, 422, "invalid_input", "mode"),
    ("/api/v1/sessions", {"workspace": "/tmp", "image": "a b"}, 422, "invalid_input", "image"),
    ("{session}/turns", {}, 422, "invalid_input", "text"),
    ("{session}/turns", {"text": ""}, 422, "invalid_input", "text"),
    ("{session}/turns", {"text": " \n"}, 422, "invalid_input", "text"),
    ("{session}/turns", {"text": 1}, 422, "invalid_input", "text"),
    ("{session}/turns", {"text": ["x"]}, 422, "invalid_input", "text"),
    ("{session}/turns", {"text": "x", "txet": "y"}, 422, "invalid_input", "txet"),
    ("{session}/turns", {"text": "x" * (4 * 1024 * 1024 + 1)}, 413, "payload_too_large", "text"),
    ("{session}/turns", {"text": "x", "script": "x" * (4 * 1024 * 1024 + 1)}, 413, "payload_too_large", "script"),
    ("{session}/turns", {"text": "x", "agent": "nobody"}, 404, "agent_unknown", "agent"),
    ("{session}/turns", {"text": "x", "agent": LONG_NAME}, 422, "invalid_input", "agent"),
    ("{session}/turns", {"text": "x", "provider": "nope"}, 404, "provider_unknown", "provider"),
    ("{session}/turns", {"text": "x", "turn_id": "../x"}, 422, "invalid_input", "turn_id"),
    ("{session}/turns", {"text": "x", "turn_id": ""}, 422, "invalid_input", "turn_id"),
    ("{session}/turns", {"text": "x", "idempotency_key": "a b"}, 422, "invalid_input", "idempotency_key"),
    ("{session}/turns", {"text": "x", "idempotency_key": "a" * 201}, 422, "invalid_input", "idempotency_key"),
    ("/api/v1/sessions/ses_none/turns", {"text": "x"}, 404, "session_not_found", None),
    ("/api/v1/sessions/ses_none/close", None, 404, "session_not_found", None),
    ("/api/v1/sessions/ses_none/reopen", None, 404, "session_not_found", None),
    ("/api/v1/turns/trn_none/stop", {}, 404, "turn_not_found", None),
    ("/api/v1/turns/trn_none/stop", {"reson": "x"}, 422, "invalid_input", "reson"),
    ("/api/v1/turns/trn_none/stop", {"reason": 1}, 422, "invalid_input", "reason"),
    ("/api/v1/turns/%00/stop", {}, 404, "turn_not_found", "turn_id"),
    ("/api/v1/nope", {}, 404, "not_found", None),
    ("/api/v1/instance", {}, 405, "method_not_allowed", None),
    ("/api/v1/sessions/", {}, 404, "not_found", None),
]

READS: list[tuple[str, int, str, str | None]] = [
    ("/api/v1/sessions?limit=0", 422, "invalid_input", "limit"),
    ("/api/v1/sessions?limit=101", 422, "invalid_input", "limit"),
    ("/api/v1/sessions?limit=x", 422, "invalid_input", "limit"),
    ("/api/v1/sessions?limit=1.5", 422, "invalid_input", "limit"),
    ("/api/v1/sessions?limt=5", 422, "invalid_input", "limt"),
    ("/api/v1/sessions?status=gone", 422, "invalid_input", "status"),
    ("/api/v1/sessions?cursor=%00", 422, "invalid_input", "cursor"),
    ("/api/v1/sessions?cursor=", 422, "invalid_input", "cursor"),
    ("/api/v1/sessions/ses_none", 404, "session_not_found", None),
    ("/api/v1/sessions/%00", 404, "session_not_found", "session_id"),
    ("/api/v1/sessions/%ff%fe", 404, "session_not_found", "session_id"),
    ("/api/v1/sessions/" + "x" * 5000, 404, "session_not_found", "session_id"),
    ("/api/v1/sessions/ses_none/turns", 404, "session_not_found", None),
    ("/api/v1/sessions/ses_none/turns/active", 404, "session_not_found", None),
    ("/api/v1/sessions/ses_none/history", 404, "session_not_found", None),
    ("/api/v1/sessions/ses_none/effects", 404, "session_not_found", None),
    ("/api/v1/sessions/ses_none/events", 404, "session_not_found", None),
    ("{session}/events?after=x", 422, "invalid_input", "after"),
    ("{session}/events?after=-1", 422, "invalid_input", "after"),
    ("{session}/events?after=1.2.3", 422, "invalid_input", "after"),
    ("{session}/events?after=99999999999999999999", 422, "invalid_input", "after"),
    ("{session}/events?after=%D9%A1", 422, "invalid_input", "after"),
    ("{session}/events?after=7", 422, "invalid_input", "after"),
    ("{session}/events?until_turn=trn_none", 404, "turn_not_found", None),
    ("{session}/events?since=1", 422, "invalid_input", "since"),
    ("{session}/turns?cursor=0", 422, "invalid_input", "cursor"),
    ("{session}/turns?cursor=99999999999999999999", 422, "invalid_input", "cursor"),
    ("{session}/history?superseded=maybe", 422, "invalid_input", "superseded"),
    ("{session}/effects?state=odd", 422, "invalid_input", "state"),
    ("{session}/effects?turn_id=%20", 422, "invalid_input", "turn_id"),
    ("/api/v1/turns/trn_none", 404, "turn_not_found", None),
    ("/api/v1/turns/trn_none/history", 404, "turn_not_found", None),
    ("/api/v1/turns/trn_none/output", 404, "turn_not_found", None),
    ("/api/v1/turns/trn_none/request", 404, "turn_not_found", None),
    (f"/api/v1/effects/{EFFECT}/output", 404, "effect_not_found", None),
    ("/api/v1/effects/short/output", 404, "effect_not_found", "effect_id"),
    (f"/api/v1/effects/{EFFECT}/output?part=half", 422, "invalid_input", "part"),
    ("/docs", 404, "not_found", None),
    ("/redoc", 404, "not_found", None),
    ("/api/v1/login", 405, "method_not_allowed", None),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """One instance for the whole matrix: nothing in it may change it."""
    root = tmp_path_factory.mktemp("inputs")
    path = root / "ledger.db"
    shutil.copyfile(sqlite_template, path)
    async with running_stack(f"sqlite:///{path}", root) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(served: Stack) -> str:
    return f"/api/v1/sessions/{await served.open_session()}"


def _check(response: Any, status: int, code: str, field: str | None) -> None:
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (response.status_code, problem["code"]) == (status, code), problem
    assert problem["status"] == status
    assert problem["type"] == f"urn:milepost:problem:{code}"
    assert problem["title"]
    assert problem["detail"].endswith(".")
    if field is not None:
        assert problem["field"] == field
    assert "Traceback" not in response.text


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("path", "body", "status", "code", "field"), BODIES)
async def test_bodies(
    served: Stack, session: str, path: str, body: Any, status: int, code: str, field: str | None
) -> None:
    before = (await served.client.get("/api/v1/sessions")).json()
    _check(await served.post(path.format(session=session), body), status, code, field)
    assert (await served.client.get("/api/v1/sessions")).json() == before
    assert (await served.client.get(f"{session}/turns")).json()["turns"] == []


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("path", "status", "code", "field"), READS)
async def test_reads(served: Stack, session: str, path: str, status: int, code: str, field: str | None) -> None:
    _check(await served.client.get(path.format(session=session)), status, code, field)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_nearest_key_is_named(served: Stack, session: str) -> None:
    body = (await served.post(f"{session}/turns", {"text": "x", "idempotencykey": "k"})).json()
    assert body["fix"] == "Did you mean 'idempotency_key'?"
    query = (await served.client.get(f"{session}/history?cursr=3")).json()
    assert query["fix"] == "Did you mean 'cursor'?"
    two = (await served.post(f"{session}/turns", {"text": 1, "agent": 2})).json()
    assert [item["field"] for item in two["errors"]] == ["text", "agent"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b'{"text": NaN', b"{'text': 1}", b"[" * 100_000])
async def test_what_is_no_json(served: Stack, session: str, content: bytes) -> None:
    response = await served.client.post(
        f"{session}/turns", content=content, headers={"Content-Type": "application/json"}
    )
    problem = response.json()
    assert response.status_code in (400, 422), problem
    assert problem["code"] in ("malformed_json", "malformed_request", "invalid_input")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_body_over_the_limit_is_not_parsed(served: Stack, session: str) -> None:
    big = b"{" + b" " * (8 * 1024 * 1024)
    announced = await served.client.post(f"{session}/turns", content=big, headers={"Content-Type": "application/json"})
    _check(announced, 413, "payload_too_large", None)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(big), 65536):
            yield big[start : start + 65536]

    chunked = await served.client.post(
        f"{session}/turns", content=pieces(), headers={"Content-Type": "application/json"}
    )
    _check(chunked, 413, "payload_too_large", None)
    fine = await served.client.post(
        f"{session}/turns",
        content=b" " * 1_000_000 + json.dumps({"txt": 1}).encode(),
        headers={"Content-Type": "application/json"},
    )
    _check(fine, 422, "invalid_input", "txt")


@pytest.mark.asyncio(loop_scope="module")
async def test_an_announced_body_over_the_limit_is_not_waited_for(served: Stack, session: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    head = (
        f"POST {session}/turns HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Content-Type: application/json\r\nContent-Length: 8388609\r\n\r\n"
    )
    writer.write(head.encode())
    async with asyncio.timeout(20):
        assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_fault_is_told_without_internals(served: Stack, session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        token = TOKEN
        raise RuntimeError(f"secret detail of {len(token)} characters")

    monkeypatch.setattr(type(served.services.turns), "page", broken)
    with structlog.testing.capture_logs() as logs:
        response = await served.client.get(f"{session}/turns")
    (entry,) = [entry for entry in logs if entry["event"] == "api.unexpected"]
    assert "RuntimeError: secret detail" in entry["exception"]
    assert TOKEN not in str(entry)
    _check(response, 500, "internal", None)
    problem = response.json()
    assert "secret detail" not in response.text
    assert problem["error_id"] == entry["error_id"]
    assert problem["error_id"] in problem["fix"]
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever() -> None:
    async def app(_: Any, receive: Any, __: Any) -> None:
        await receive()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_: Any) -> None:
        raise AssertionError("nothing is sent before the application says so")

    with pytest.raises(HTTPException) as caught:
        await BodyLimit(app, seconds=0.05)(
            {"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send
        )
    assert caught.value.status_code == 408
