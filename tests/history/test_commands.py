"""`milepost search`, `export` and `import` as a person runs them, and their routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.inprocess import StreamingTransport
from milepost.storage import Hub, open_ledger, upgrade
from tests.api.conftest import stack
from tests.api.stack import Stack
from tests.cli.conftest import Milepost, milepost
from tests.history.build import Builder, Call, Said

__all__ = ["milepost", "stack"]


async def _fill(home: Path) -> str:
    url = f"sqlite:///{home}/milepost.db"
    await upgrade(url)
    ledger = await open_ledger(url, Hub())
    try:
        builder = Builder(ledger)
        session = await builder.session("Payments \x1b[31m[bold]", "/srv/shop")
        call = Call("bash", '{"command": "alembic upgrade head"}', "ok")
        await builder.turn(session, Said("Migrate the \x1b[2Jdatabase", "Migrated.", [call]))
        await builder.turn(session, Said("What now?", "Nothing."))
    finally:
        await ledger.close()
    return session


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_searching_and_reindexing(milepost: Milepost) -> None:
    milepost.home.mkdir(mode=0o700)
    session = asyncio.run(_fill(milepost.home))
    found = milepost.run("search", "database migrate", "--json")
    assert found.code == 0, found.err
    (hit,) = found.json()["hits"]
    assert (hit["session_id"], hit["turn_number"], hit["kind"]) == (session, 1, "request")
    assert found.json()["complete"] is True
    people = milepost.run("search", "database", "--literal")
    assert people.code == 0
    assert "\x1b[2J" not in people.out and "\x1b[31m" not in people.out
    assert "turn 1 completed · request" in people.out
    done = milepost.run("db", "reindex", "--json")
    assert done.json()["sessions"] == 1
    assert len(milepost.run("search", "alembic", "--kind", "call", "--json").json()["hits"]) == 1
    refused = milepost.run("search", "x", "--since", "yesterday", "--json")
    assert (refused.code, refused.error()["field"]) == (2, "since")


async def test_searching_over_http(stack: Stack) -> None:
    builder = Builder(stack.ledger)
    session = await builder.session("Payments")
    turn = await builder.turn(session, Said("find \0 \ud800 me", "ok"))
    got = await stack.client.get("/api/v1/search", params={"q": "find me", "session_id": session, "limit": 1})
    assert got.status_code == 200, got.text
    (hit,) = got.json()["hits"]
    assert (hit["turn_id"], hit["turn_state"], hit["superseded"]) == (turn, "completed", False)
    assert [piece["text"] for piece in hit["snippet"] if piece["match"]] == ["find", "me"]
    same = await stack.post("/api/v1/search", {"q": "find me", "session_id": session, "limit": 1})
    assert same.json() == got.json()
    exact = await stack.post("/api/v1/search", {"q": "\0 \ud800", "literal": True})
    assert [hit["turn_id"] for hit in exact.json()["hits"]] == [turn]
    long = await stack.post("/api/v1/search", {"q": "漢 " * 5_000})
    assert (long.status_code, long.json()["hits"]) == (200, [])
    for query in ({"since": "2026-01-31"}, {"cursor": "x"}, {"state": "odd"}, {"kind": "x"}, {"limit": 0}, {"p": "x"}):
        refused = await stack.client.get("/api/v1/search", params={"q": "find"} | query)
        assert refused.status_code == 422, query
        assert refused.json()["code"] == "invalid_input"
    assert (await stack.post("/api/v1/search", {"q": "x" * 70_000})).status_code == 413
    assert (await stack.client.get("/api/v1/search", params={"q": "x", "session_id": "none"})).status_code == 404


@pytest.mark.parametrize("time", ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456+02:00"])
async def test_times_of_a_search(stack: Stack, time: str) -> None:
    found: httpx.Response = await stack.client.get("/api/v1/search", params={"q": "x", "since": time, "until": time})
    assert found.status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_exporting(milepost: Milepost) -> None:
    milepost.home.mkdir(mode=0o700)
    session = asyncio.run(_fill(milepost.home))
    markdown = milepost.run("export", session)
    assert markdown.code == 0, markdown.err
    assert markdown.out.startswith("# Payments") and "\x1b" not in markdown.out
    page = milepost.folder / "out.html"
    done = milepost.run("export", session, "--format", "html", "--output", str(page), "--json")
    assert done.code == 0, done.err
    assert done.json() == {
        "session_id": session,
        "format": "html",
        "file": str(page),
        "bytes": page.stat().st_size,
    }
    assert page.stat().st_mode & 0o777 == 0o600
    before = page.read_bytes()
    again = milepost.run("export", session, "--output", str(page), "--json")
    assert (again.code, again.error()["code"], again.error()["fix"]) == (1, "target_not_empty", "Name a new file.")
    assert page.read_bytes() == before
    missing = milepost.run("export", "ses_none", "--output", str(milepost.folder / "none.md"))
    assert missing.code == 1
    assert sorted(path.name for path in milepost.folder.iterdir()) == ["milepost.yaml", "out.html"]


@pytest.mark.parametrize("wanted", ["json", "md", "html"])
async def test_exporting_over_http(stack: Stack, wanted: str) -> None:
    builder = Builder(stack.ledger)
    session = await builder.session("Payments")
    await builder.turn(session, Said("please \0 \ud800", "<b>answer</b>"))
    got = await stack.client.get(f"/api/v1/sessions/{session}/export", params={"format": wanted})
    assert got.status_code == 200, got.text
    assert got.headers["content-disposition"] == f'attachment; filename="{session}.{wanted}"'
    assert "answer" in got.text
    policy = got.headers.get("content-security-policy", "")
    assert (wanted == "html") is ("sandbox" in policy)
    assert (await stack.client.get("/api/v1/sessions/none/export")).status_code == 404
    assert (await stack.client.get(f"/api/v1/sessions/{session}/export?format=pdf")).status_code == 422


async def test_an_answer_in_this_process_is_read_as_it_comes() -> None:
    """The command line's own transport: 256 MiB in pieces, of which a few are made ahead; and an early end."""
    made = 0

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        nonlocal made
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(256):
            made += 1
            await send({"type": "http.response.body", "body": b"x" * 1024 * 1024, "more_body": True})
        if scope["path"] == "/whole":
            await send({"type": "http.response.body", "body": b""})
        raise ValueError

    async with httpx.AsyncClient(transport=StreamingTransport(app), base_url="http://x") as client:
        read = 0
        async with client.stream("GET", "/whole") as response:
            async for piece in response.aiter_bytes():
                read += len(piece)
                assert made * 1024 * 1024 - read <= 16 * 1024 * 1024
        assert read == 256 * 1024 * 1024
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/broken")
        async with client.stream("GET", "/whole") as response:
            assert response.status_code == 200


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_importing(milepost: Milepost) -> None:
    milepost.home.mkdir(mode=0o700)
    session = asyncio.run(_fill(milepost.home))
    file = milepost.folder / "export.json"
    assert milepost.run("export", session, "--format", "json", "--output", str(file)).code == 0
    done = milepost.run("import", str(file), "--json")
    assert done.code == 0, done.err
    assert done.json()["created"] is True and done.json()["turns"] == 2
    again = milepost.run("import", str(file))
    assert done.json()["session_id"] in again.out and "before" in again.out
    file.write_text('{"role": "user", "text": "x"}\nnonsense\n')
    bad = milepost.run("import", str(file), "--workspace", ".", "--json")
    assert (bad.code, bad.error()["field"]) == (2, "file")
    assert bad.error()["message"].startswith("Line 2: ")


async def test_importing_over_http(stack: Stack, tmp_path: Path) -> None:
    builder = Builder(stack.ledger)
    session = await builder.session("Payments", str(tmp_path))
    await builder.turn(session, Said("please", "x" * 200_000))
    exported = (await stack.client.get(f"/api/v1/sessions/{session}/export")).content
    made = await stack.client.post("/api/v1/imports", content=exported)
    assert made.status_code == 201, made.text
    assert made.headers["location"] == f"/api/v1/sessions/{made.json()['session_id']}"
    assert (await stack.client.post("/api/v1/imports", content=exported)).status_code == 200
    (old,) = (await stack.client.get(f"/api/v1/sessions/{session}/history")).json()["turns"]
    (new,) = (await stack.client.get(f"/api/v1/sessions/{made.json()['session_id']}/history")).json()["turns"]
    assert old["temporal_url"] and (new["temporal_url"], new["links"]["temporal"]) == (None, None)
    # Far over the limit of other bodies, and sent piece by piece.
    lines = [b'{"role": "user", "text": "%s"}\n' % (b"y" * 1_000_000) for _ in range(12)]

    async def pieces() -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    transcript = await stack.client.post("/api/v1/imports", content=pieces(), params={"workspace": str(tmp_path)})
    assert (transcript.status_code, transcript.json()["turns"]) == (201, 12)
    history = await stack.client.get(f"/api/v1/sessions/{transcript.json()['session_id']}/history")
    assert {turn["state"] for turn in history.json()["turns"]} == {"interrupted"}
    bad = await stack.client.post("/api/v1/imports", content=b"{}\n", params={"workspace": str(tmp_path)})
    assert (bad.status_code, bad.json()["code"], bad.json()["field"]) == (422, "invalid_input", "file")
    assert (await stack.client.post("/api/v1/imports", content=lines[0])).json()["field"] == "workspace"
    assert (await stack.client.post("/api/v1/imports?workspace=here", content=lines[0])).status_code == 422
