"""Attachments over HTTP."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.stack import Stack, running_stack
from tests.attachments import files

API = "/api/v1"


@pytest.fixture
async def stack(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(sqlite_url, tmp_path) as running:
        yield running


async def opened(stack: Stack, tmp_path: Path) -> str:
    answer = await stack.client.post(f"{API}/sessions", json={"workspace": str(tmp_path)})
    return str(answer.json()["session_id"])


async def test_from_upload_to_history(stack: Stack, tmp_path: Path) -> None:
    session = await opened(stack, tmp_path)
    route = f"{API}/sessions/{session}/attachments"
    page = b"<html><body><script>alert(1)</script><p>hello</p></body></html>"
    name = '../"a"\n\u202ename \U0001f9ed.html'
    made = await stack.client.post(route, params={"name": name, "scope": "once"}, content=page)
    assert made.status_code == 201
    item = made.json()
    assert made.headers["Location"] == f"{API}/attachments/{item['attachment_id']}"
    assert (item["name"], item["scope"], item["media_type"], item["state"]) == (name, "once", "text/html", "ready")
    assert item["selected"] and item["size"] == len(page) and item["text_bytes"] == 5 and item["note"] is None
    assert (await stack.client.get(f"{API}/attachments/{item['attachment_id']}")).json() == item
    text = await stack.client.get(f"{API}/attachments/{item['attachment_id']}/text")
    assert text.text == "hello" and text.headers["X-Content-Type-Options"] == "nosniff"
    assert text.headers["Content-Type"] == "text/plain; charset=utf-8"
    got = await stack.client.get(f"{API}/attachments/{item['attachment_id']}/content")
    assert got.content == page and got.headers["Content-Type"] == "application/octet-stream"
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert got.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    disposition = got.headers["Content-Disposition"]
    assert disposition.startswith("attachment; filename*=UTF-8''..%2F%22a%22%0A%E2%80%AE") and "\n" not in disposition
    turn = (await stack.client.post(f"{API}/sessions/{session}/turns", json={"text": "look"})).json()
    listed = (await stack.client.get(route)).json()
    assert listed["next_cursor"] is None and listed["attachments"][0]["used_by"] == turn["turn_id"]
    assert (await stack.client.get(route, params={"selected": True})).json()["attachments"] == []
    (shown,) = (await stack.client.get(f"{API}/turns/{turn['turn_id']}/history")).json()["attachments"]
    assert shown["name"] == name and shown["sha256"] == item["sha256"]
    assert (await stack.client.get(shown["content_path"])).content == page
    assert (await stack.client.get(shown["text_path"])).text == "hello"
    removed = await stack.client.delete(f"{API}/attachments/{item['attachment_id']}")
    assert removed.status_code == 200 and removed.json()["removed_at"] is not None
    assert (await stack.client.get(shown["content_path"])).content == page


async def test_refusals(stack: Stack, tmp_path: Path) -> None:
    session = await opened(stack, tmp_path)
    route = f"{API}/sessions/{session}/attachments"

    async def refused(status: int, code: str, **query: str) -> str:
        answer = await stack.client.post(query.pop("route", route), params=query, content=b"text")
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        return str(answer.json()["detail"])

    await refused(422, "invalid_input")
    await refused(422, "invalid_input", name="a", scope="always")
    await refused(422, "invalid_input", name="a", color="red")
    await refused(404, "session_not_found", name="a", route=f"{API}/sessions/ses_none/attachments")
    for path in ("", "/content", "/text"):
        answer = await stack.client.get(f"{API}/attachments/att_none{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "attachment_not_found")
    assert (await stack.client.delete(f"{API}/attachments/no id")).status_code == 404
    await stack.client.post(f"{API}/sessions/{session}/close")
    await refused(409, "session_closed", name="a")
    assert (await stack.client.get(route)).json()["attachments"] == []


async def test_a_file_over_the_limit_is_refused_by_name(stack: Stack, tmp_path: Path) -> None:
    session = await opened(stack, tmp_path)

    async def long() -> AsyncIterator[bytes]:
        for _ in range(120):
            yield b"x" * (256 * 1024)

    route = f"{API}/sessions/{session}/attachments"
    answer = await stack.client.post(route, params={"name": "long.txt"}, content=long())
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    expected = "The file 'long.txt' is too large. Files that are no images may have 26,214,400 bytes."
    assert answer.json()["detail"] == expected and answer.json()["fix"]
    assert not [path for path in (tmp_path / "blobs").glob("**/*") if path.is_file()]


@pytest.mark.slow
async def test_memory_is_bounded_and_the_same_bytes_are_stored_once(stack: Stack, tmp_path: Path) -> None:
    session = await opened(stack, tmp_path)
    route = f"{API}/sessions/{session}/attachments"

    async def zeros() -> AsyncIterator[bytes]:
        for _ in range(96):
            yield bytes(256 * 1024)

    tracemalloc.start()
    for name in ("a.bin", "b.bin"):
        made = (await stack.client.post(route, params={"name": name, "wait": False}, content=zeros())).json()
        assert made["size"] == 24 * 1024**2 and made["state"] == "pending"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * 1024**2
    assert len(list((tmp_path / "blobs").glob("??/*"))) == 1
    for _ in range(600):
        found = (await stack.client.get(route)).json()["attachments"]
        if all(item["state"] == "unsupported" for item in found):
            break
        await asyncio.sleep(0.1)
    assert [(item["name"], item["state"]) for item in found] == [("b.bin", "unsupported"), ("a.bin", "unsupported")]


async def test_an_upload_that_breaks_off_leaves_nothing(stack: Stack, tmp_path: Path) -> None:
    session = await opened(stack, tmp_path)

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await stack.client.post(f"{API}/sessions/{session}/attachments", params={"name": "a"}, content=broken())
    for _ in range(100):
        if not [path for path in (tmp_path / "blobs").glob("**/*") if path.is_file()]:
            break
        await asyncio.sleep(0.05)
    assert not [path for path in (tmp_path / "blobs").glob("**/*") if path.is_file()]
    assert (await stack.client.get(f"{API}/sessions/{session}/attachments")).json()["attachments"] == []


async def test_an_image_by_its_bytes(stack: Stack, tmp_path: Path) -> None:
    session = await opened(stack, tmp_path)
    route = f"{API}/sessions/{session}/attachments"
    made = (await stack.client.post(route, params={"name": "report.pdf"}, content=files.picture())).json()
    assert (made["media_type"], made["state"]) == ("image/png", "ready")
