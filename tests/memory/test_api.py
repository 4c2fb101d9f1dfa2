"""A person sees and edits memory: over the API, on a served instance."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from milepost.domain.events import Event
from milepost.domain.memory import BlockVersion, DailyEntry, Scope
from milepost.domain.memory_events import BlockWritten, MemoryForgotten
from milepost.domain.semantic import MemoryEntry
from milepost.ledger.codec import decode_event
from tests.api.stack import AGENT, Stack, running_stack
from tests.ledger.samples import NASTY

DAY = 86_400_000_000


@pytest.fixture
async def stack(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(sqlite_url, tmp_path) as running:
        yield running


@pytest.fixture
async def session(stack: Stack) -> str:
    session_id = await stack.open_session()
    scope = Scope.agent(session_id, AGENT)
    stores = stack.services.memory._stores
    entries = [DailyEntry(f"t{n}.request", n * DAY, "request", "user", f"word {n}", "", n) for n in range(1, 6)]
    await stores.daily.append(scope, entries)
    await stores.semantic.add(
        scope,
        [MemoryEntry(entry.id, entry.text, "request", entry.at, turn_number=entry.turn_number) for entry in entries],
    )
    return session_id


def url(session: str, rest: str = "") -> str:
    return f"/api/v1/sessions/{session}/memory/{AGENT}{rest}"


async def recorded(stack: Stack, session: str) -> list[Event]:
    stored = await stack.ledger.read(lambda tx: tx.events.read(session, limit=1000))
    return [decode_event(item.type, item.version, item.payload) for item in stored]


async def ok(response: httpx.Response, status: int = 200) -> Any:
    assert response.status_code == status, response.text
    return response.json()


async def refused(response: httpx.Response, status: int, code: str) -> Any:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    return response.json()


async def test_a_block_is_written_read_and_reverted(stack: Stack, session: str) -> None:
    client = stack.client
    blocks = (await ok(await client.get(url(session, "/blocks"))))["blocks"]
    assert [(block["label"], block["limit"], block["version"]) for block in blocks] == [
        ("persona", 2000, 0),
        ("human", 2000, 0),
        ("project", 3000, 0),
    ]
    body = {"value": NASTY, "expected_version": 0, "note": "first"}
    human = url(session, "/blocks/human")
    written = await ok(await client.put(human, content=json.dumps(body), headers={"Content-Type": "application/json"}))
    assert (written["version"], written["value"], written["by"], written["note"]) == (1, NASTY, "person:api", "first")
    await refused(await client.put(human, json={"value": "x", "expected_version": 0}), 409, "block_conflict")
    too_long = await refused(await client.put(human, json={"value": "x" * 2001}), 413, "block_too_long")
    assert "its limit is 2000" in too_long["detail"]
    await ok(await client.put(human, json={"value": "Kim"}))
    await ok(await client.post(f"{human}/revert", json={"to": 1}))
    found = await ok(await client.get(human))
    assert found["block"]["value"] == NASTY
    assert [(version["version"], version["note"]) for version in found["versions"]] == [
        (3, "reverted to version 1"),
        (2, ""),
        (1, "first"),
    ]
    await ok(await client.post(f"{human}/revert", json={"to": 0}))
    assert (await ok(await client.get(human)))["block"]["value"] == ""
    await refused(await client.post(f"{human}/revert", json={"to": 99}), 404, "block_not_found")
    await refused(await client.get(url(session, "/blocks/nothing")), 404, "block_not_found")
    events = [event for event in await recorded(stack, session) if isinstance(event, BlockWritten)]
    assert [(event.number, event.value) for event in events] == [(1, NASTY), (2, "Kim"), (3, NASTY), (4, "")]


async def test_owners_that_do_not_exist(stack: Stack, session: str) -> None:
    root = f"/api/v1/sessions/{session}/memory"
    await refused(await stack.client.get(f"{root}/nobody/blocks"), 404, "agent_unknown")
    await refused(await stack.client.get(f"{root}/a:b/blocks"), 422, "invalid_input")
    await refused(await stack.client.get("/api/v1/sessions/ses_none/memory/coder/log"), 404, "session_not_found")
    await refused(await stack.client.get("/api/v1/shared-blocks/human"), 404, "block_not_found")
    assert await ok(await stack.client.get("/api/v1/shared-blocks")) == {"blocks": []}
    worker = await ok(await stack.client.get(f"{root}/{AGENT}:worker:reader/blocks"))
    assert worker == {"blocks": []}


async def test_the_log_is_read_in_pages_and_by_time(stack: Stack, session: str) -> None:
    found: list[str] = []
    cursor = None
    while True:
        query = {"limit": "2"} | ({} if cursor is None else {"cursor": cursor})
        page = await ok(await stack.client.get(url(session, "/log"), params=query))
        found += [entry["id"] for entry in page["entries"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [f"t{number}.request" for number in range(1, 6)]
    bounds = {"from": "1970-01-03T00:00:00Z", "to": "1970-01-03T23:00:00-01:00"}
    page = await ok(await stack.client.get(url(session, "/log"), params=bounds))
    assert [(entry["at"], entry["text"]) for entry in page["entries"]] == [("1970-01-03T00:00:00.000000Z", "word 2")]
    await refused(await stack.client.get(url(session, "/log"), params={"from": "1970-01-03"}), 422, "invalid_input")
    reverse = {"from": "1970-01-04T00:00:00Z", "to": "1970-01-03T00:00:00Z"}
    told = await refused(await stack.client.get(url(session, "/log"), params=reverse), 422, "invalid_input")
    assert "'from' is after 'to'" in json.dumps(told)
    await refused(await stack.client.get(url(session, "/log"), params={"cursor": "x"}), 422, "invalid_input")


async def test_records_are_listed_recalled_and_forgotten(stack: Stack, session: str) -> None:
    client = stack.client
    first = await ok(await client.get(url(session, "/records"), params={"limit": 3}))
    second = await ok(await client.get(url(session, "/records"), params={"limit": 3, "cursor": first["next_cursor"]}))
    ids = [record["id"] for record in (*first["records"], *second["records"])]
    assert ids == [f"t{number}.request" for number in (5, 4, 3, 2, 1)]
    assert second["next_cursor"] is None
    found = await ok(await client.post(url(session, "/recall"), json={"query": "word 3", "k": 2}))
    assert [(item["id"], item["score"]) for item in found["items"]] == [
        ("t3.request", 1_000_000),
        ("t1.request", 500_000),
    ]
    gone = await ok(await client.post(url(session, "/forget"), json={"ids": ["t3.request", "t9.request"]}))
    assert gone == {"forgotten": ["t3.request"]}
    await refused(await client.post(url(session, "/forget"), json={"ids": ["t3.request"]}), 404, "record_not_found")
    (event,) = [event for event in await recorded(stack, session) if isinstance(event, MemoryForgotten)]
    assert (event.by, event.turn_id, event.owner) == ("person:api", None, AGENT)


async def test_vectors_are_made_anew(stack: Stack, session: str) -> None:
    client = stack.client
    before = await ok(await client.get(url(session, "/records")))
    step = await ok(await client.post(url(session, "/reindex"), json={}))
    assert step["finished"]
    assert step["embedded"] == step["records"] == len(before["records"])
    assert step["dimensions"] >= 8
    found = await ok(await client.post(url(session, "/recall"), json={"query": "word 3", "k": 2}))
    assert (found["incomplete"], found["problem"]) == (0, None)
    await refused(await client.post(url(session, "/reindex"), json={"after": -1}), 422, "invalid_input")


async def test_all_of_it_can_be_exported(stack: Stack, session: str) -> None:
    await ok(await stack.client.put(url(session, "/blocks/human"), json={"value": "Kim"}))
    response = await stack.client.get(url(session, "/export"))
    lines = [json.loads(line) for line in response.text.splitlines()]
    kinds = [line["type"] for line in lines]
    assert kinds == ["block"] + ["entry"] * 5 + ["record"] * 5
    assert lines[0]["value"] == "Kim" and not lines[0]["superseded"]
    shown = await ok(await stack.client.get(f"/api/v1/sessions/{session}/memory"))
    (owner,) = shown["owners"]
    assert (owner["owner"], owner["records"], len(owner["days"])) == (AGENT, 5, 5)


async def test_people_and_agents_edit_at_once_and_lose_nothing(stack: Stack, session: str) -> None:
    """Each reads, adds a word and writes on condition; who loses reads again."""
    human = url(session, "/blocks/human")

    async def add(word: str) -> None:
        while True:
            block = (await ok(await stack.client.get(human)))["block"]
            body = {"value": f"{block['value']} {word}", "expected_version": block["version"]}
            response = await stack.client.put(human, json=body)
            if response.status_code == 200:
                return
            await refused(response, 409, "block_conflict")

    words = [f"w{number}" for number in range(6)]
    await asyncio.gather(*(add(word) for word in words))
    value = (await ok(await stack.client.get(human)))["block"]["value"]
    assert sorted(value.split()) == words


async def test_damage_is_told(stack: Stack, session: str) -> None:
    scope = Scope.agent(session, AGENT)
    await stack.services.memory._stores.blocks.write(scope, "human", BlockVersion(1, "x", 1, "me", "k"))
    path = next((stack.root / "data").rglob("core/v1/*.json"))
    path.write_bytes(b"{")
    body = await refused(await stack.client.get(url(session, "/blocks")), 503, "memory_damaged")
    assert str(path) in body["detail"]
