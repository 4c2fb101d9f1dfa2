"""History, effects and long texts over HTTP."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from milepost.domain.content import Content
from milepost.domain.turns import TurnState
from milepost.services import history as history_module
from tests.api.stack import AGENT, Stack

NASTY = "a\0b \ud800 \u2028"


async def test_history_tells_what_was_asked_said_and_done(stack: Stack) -> None:
    session = await stack.open_session()
    turn = await stack.begin(session, "first")
    work = stack.work(session, turn["turn_id"])
    await work.start_agent()
    tool = await work.run_tool(Content("exit 0\n" + "x" * 5000))
    spec, attempt = await work.start_call()
    await work.finish_call(spec, attempt, f"Done. {NASTY}")
    await work.end()
    running = await stack.begin(session, "second")
    page = (await stack.client.get(f"/api/v1/sessions/{session}/history")).json()
    assert page["session_id"] == session
    assert page["next_cursor"] is None
    second, first = page["turns"]
    assert (second["turn_id"], second["state"], second["status"], second["output"]) == (
        running["turn_id"],
        "running",
        "waiting",
        "",
    )
    assert (first["request"], first["output"], first["superseded"]) == ("first", f"Done. {NASTY}", False)
    assert first["usage"]["total_tokens"] == 18
    (agent,) = first["agents"]
    assert (agent["agent"], agent["output"], agent["partial"], agent["rounds"]) == (AGENT, first["output"], False, 1)
    (card,) = first["tools"]
    assert (card["effect_id"], card["tool"], card["state"], card["truncated"]) == (tool, "bash", "succeeded", True)
    assert len(card["preview"]) == 2000
    whole = await stack.client.get(card["output_path"])
    assert whole.text == "exit 0\n" + "x" * 5000
    entry = (await stack.client.get(first["links"]["history"])).json()
    assert entry == first
    output = await stack.client.get(f"{first['links']['self']}/output")
    assert output.content.decode("utf-8", "surrogatepass") == f"Done. {NASTY}"


async def test_history_is_paged(stack: Stack) -> None:
    session = await stack.open_session()
    for n in range(5):
        turn = await stack.begin(session, f"request {n}")
        await stack.work(session, turn["turn_id"]).end(TurnState.FAILED, "no")
    seen: list[int] = []
    query: dict[str, int] = {"limit": 2}
    while True:
        page = (await stack.client.get(f"/api/v1/sessions/{session}/history", params=query)).json()
        seen.extend(turn["number"] for turn in page["turns"])
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == [5, 4, 3, 2, 1]


async def test_pages_of_large_turns_are_shorter(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await stack.open_session()
    for n in range(12):
        turn = await stack.begin(session, f"request {n}")
        work = stack.work(session, turn["turn_id"])
        await work.start_agent()
        # The second turn alone is over the bound.
        await work.run_tool(Content("z" * (90_000 if n == 1 else 10_000)))
        await work.end()
    monkeypatch.setattr(history_module, "PAGE_BYTES", 64_000)
    seen: list[list[int]] = []
    query: dict[str, int] = {"limit": 10}
    while True:
        page = (await stack.client.get(f"/api/v1/sessions/{session}/history", params=query)).json()
        seen.append([turn["number"] for turn in page["turns"]])
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert [number for numbers in seen for number in numbers] == list(range(12, 0, -1))
    assert all(1 <= len(numbers) <= 6 for numbers in seen)
    assert [2] in seen


async def test_effects_are_listed_by_turn_and_state_in_pages(stack: Stack) -> None:
    session = await stack.open_session()
    turn = await stack.begin(session)
    work = stack.work(session, turn["turn_id"])
    await work.start_agent()
    done = [await work.run_tool(Content(str(n))) for n in range(4)]
    open_call, _ = await work.start_call()
    path = f"/api/v1/sessions/{session}/effects"
    everything = (await stack.client.get(path)).json()
    assert {effect["effect_id"] for effect in everything["effects"]} == {*done, open_call.effect_id}
    seen: list[str] = []
    query: dict[str, str | int] = {"limit": 2}
    while True:
        page = (await stack.client.get(path, params=query)).json()
        seen.extend(effect["effect_id"] for effect in page["effects"])
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == [effect["effect_id"] for effect in everything["effects"]]
    (running,) = (await stack.client.get(path, params={"state": "dispatched"})).json()["effects"]
    assert running["effect_id"] == open_call.effect_id
    assert (running["operation"], running["effect_class"], running["attempt"]) == ("scripted/demo", "model", 1)
    assert running["finished_at"] is None
    assert (await stack.client.get(path, params={"turn_id": "trn_other"})).json()["effects"] == []
    wrong = await stack.client.get(path, params={"cursor": "0" * 64})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "cursor")


async def test_a_huge_tool_result_is_sent_whole_and_in_pieces(stack: Stack) -> None:
    session = await stack.open_session()
    turn = await stack.begin(session)
    work = stack.work(session, turn["turn_id"])
    await work.start_agent()
    text = "0123456789abcde\n" * (5 * 65536)
    full = await stack.services.contents.store(text)
    tool = await work.run_tool(Content("[shortened]"), full)
    async with stack.client.stream("GET", f"/api/v1/effects/{tool}/output") as response:
        assert response.status_code == 200
        assert int(response.headers["content-length"]) == len(text)
        received = b"".join([piece async for piece in response.aiter_raw()])
    assert received == text.encode()
    model = await stack.client.get(f"/api/v1/effects/{tool}/output", params={"part": "model"})
    assert model.text == "[shortened]"


async def test_a_damaged_or_lost_result_is_never_taken_for_whole(stack: Stack) -> None:
    session = await stack.open_session()
    turn = await stack.begin(session)
    work = stack.work(session, turn["turn_id"])
    await work.start_agent()
    full = await stack.services.contents.store("y" * 2_000_000)
    tool = await work.run_tool(Content("short"), full)
    assert full.blob is not None
    blob = stack.root / "blobs" / full.blob.digest[:2] / full.blob.digest
    blob.write_bytes(b"z" + b"y" * 1_999_999)
    with pytest.raises(httpx.RemoteProtocolError):
        await stack.client.get(f"/api/v1/effects/{tool}/output")
    await asyncio.to_thread(blob.unlink)
    lost = await stack.client.get(f"/api/v1/effects/{tool}/output")
    assert (lost.status_code, lost.json()["code"]) == (503, "blob_not_found")
    unfinished, _ = await work.start_call()
    missing = await stack.client.get(f"/api/v1/effects/{unfinished.effect_id}/output")
    assert (missing.status_code, missing.json()["code"]) == (404, "effect_not_found")
