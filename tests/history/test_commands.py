"""`milepost search`, `export` and `import` as a person runs them, and their routes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

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
