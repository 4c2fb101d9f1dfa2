"""Turns over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from milepost.domain.turns import TurnState
from tests.api.stack import Stack

NASTY = "a\0b \ud800 \udfff \u2028 \x85 <script> 🚦"


async def test_a_turn_is_accepted_with_its_links(stack: Stack) -> None:
    session = await stack.open_session()
    response = await stack.client.post(
        f"/api/v1/sessions/{session}/turns",
        json={"text": "do it", "agent": "coder", "provider": "scripted", "model": "demo", "script": "responses: []"},
    )
    turn = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == turn["links"]["self"] == f"/api/v1/turns/{turn['turn_id']}"
    assert turn["created"] is True
    assert (turn["session_id"], turn["number"], turn["state"], turn["status"]) == (session, 1, "running", "waiting")
    assert (turn["request"], turn["request_truncated"]) == ("do it", False)
    assert (turn["agent"], turn["provider"], turn["model"]) == ("coder", "scripted", "demo")
    assert turn["workflow_id"] == f"{stack.services.instance_id}/turn/{turn['turn_id']}"
    assert turn["temporal_url"] == turn["links"]["temporal"]
    assert turn["temporal_url"].startswith("http://127.0.0.1:8233/namespaces/default/workflows/")
    assert turn["usage"] == {
        "input_tokens": 0,
        "cached_input_tokens": 0,
        "output_tokens": 0,
        "reasoning_tokens": 0,
        "total_tokens": 0,
        "complete": True,
        "cache_write_tokens": 0,
        "cost": {"amount": "0", "currency": "USD", "complete": True},
    }
    assert turn["created_at"].endswith("Z")
    assert [turn[name] for name in ("error", "reason", "dispatched_at", "stop_requested_at", "ended_at")] == [None] * 5
    del turn["created"]
    assert (await stack.client.get(turn["links"]["self"])).json() == turn
    active = await stack.client.get(f"{turn['links']['session']}/turns/active")
    assert active.json() == {"turn": turn}
    for link in ("session", "history"):
        assert (await stack.client.get(turn["links"][link])).status_code == 200


@pytest.mark.parametrize("where", ["field", "header", "both", "turn_id"])
async def test_sending_a_request_again_is_harmless(stack: Stack, where: str) -> None:
    session = await stack.open_session()
    path = f"/api/v1/sessions/{session}/turns"
    body: dict[str, Any] = {"text": "once"}
    headers: dict[str, str] = {}
    if where in ("field", "both"):
        body["idempotency_key"] = "k1"
    if where in ("header", "both"):
        headers["Idempotency-Key"] = "k1"
    if where == "turn_id":
        body["turn_id"] = "my-turn.1"
    first, *others = await asyncio.gather(*(stack.client.post(path, json=body, headers=headers) for _ in range(5)))
    answers = [first, *others]
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 200, 202]
    assert len({answer.json()["turn_id"] for answer in answers}) == 1
    assert [answer.json()["created"] for answer in answers].count(True) == 1
    turns = (await stack.client.get(path)).json()["turns"]
    assert len(turns) == 1
    mismatch = await stack.client.post(path, json=body | {"text": "another"}, headers=headers)
    assert mismatch.status_code == 409
    assert mismatch.json()["code"] == "idempotency_mismatch"
    assert turns[0]["turn_id"] in mismatch.json()["detail"]


async def test_header_and_field_must_not_differ(stack: Stack) -> None:
    session = await stack.open_session()
    refused = await stack.client.post(
        f"/api/v1/sessions/{session}/turns",
        json={"text": "x", "idempotency_key": "a"},
        headers={"Idempotency-Key": "b"},
    )
    assert (refused.status_code, refused.json()["field"]) == (422, "idempotency_key")


async def test_a_second_turn_names_the_running_one(stack: Stack) -> None:
    session = await stack.open_session()
    turn = await stack.begin(session)
    refused = await stack.client.post(f"/api/v1/sessions/{session}/turns", json={"text": "another"})
    problem = refused.json()
    assert refused.status_code == 409
    assert refused.headers["content-type"] == "application/problem+json"
    assert (problem["code"], problem["turn_id"], problem["status"]) == ("turn_running", turn["turn_id"], 409)
    assert turn["turn_id"] in problem["fix"]


async def test_stop_before_any_work_ends_the_turn(stack: Stack) -> None:
    session = await stack.open_session()
    turn = await stack.begin(session)
    stopped = await stack.client.post(turn["links"]["stop"], json={"reason": "changed my mind"})
    assert stopped.status_code == 202
    body = stopped.json()
    assert (body["state"], body["status"], body["error"]) == ("stopped", "ended", None)
    assert body["ended_at"] is not None
    again = await stack.client.post(turn["links"]["stop"])
    assert (again.status_code, again.json()["code"]) == (409, "turn_not_running")
    assert (await stack.client.get(f"/api/v1/sessions/{session}/turns/active")).json() == {"turn": None}


async def test_stop_of_a_working_turn_asks_once(stack: Stack) -> None:
    session = await stack.open_session()
    turn = await stack.begin(session)
    work = stack.work(session, turn["turn_id"])
    await work.claim()
    for _ in range(2):
        asked = await stack.client.post(turn["links"]["stop"])
        assert (asked.status_code, asked.json()["state"], asked.json()["status"]) == (202, "running", "stopping")
    await work.end(TurnState.STOPPED, "Stopped by a person.")
    ended = (await stack.client.get(turn["links"]["self"])).json()
    assert (ended["state"], ended["reason"], ended["error"]) == ("stopped", "Stopped by a person.", None)


async def test_why_a_turn_did_not_complete(stack: Stack) -> None:
    session = await stack.open_session()
    for state, error in (
        (TurnState.FAILED, {"code": "turn_failed", "message": "It broke."}),
        (TurnState.INTERRUPTED, {"code": "turn_interrupted", "message": "It broke."}),
        (TurnState.COMPLETED, None),
    ):
        turn = await stack.begin(session)
        await stack.work(session, turn["turn_id"]).end(state, "It broke.")
        ended = (await stack.client.get(turn["links"]["self"])).json()
        assert (ended["state"], ended["status"], ended["error"]) == (state.value, "ended", error)


async def test_turns_are_paged_newest_first(stack: Stack) -> None:
    session = await stack.open_session()
    for n in range(5):
        turn = await stack.begin(session, f"request {n}")
        await stack.work(session, turn["turn_id"]).end()
    seen: list[int] = []
    query: dict[str, int] = {"limit": 2}
    while True:
        page = (await stack.client.get(f"/api/v1/sessions/{session}/turns", params=query)).json()
        seen.extend(turn["number"] for turn in page["turns"])
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == [5, 4, 3, 2, 1]


async def test_any_text_comes_back_as_it_was_sent(stack: Stack) -> None:
    session = await stack.open_session(title=NASTY)
    turn = await stack.begin(session, NASTY)
    assert turn["request"] == NASTY
    whole = await stack.client.get(f"{turn['links']['self']}/request")
    assert whole.content.decode("utf-8", "surrogatepass") == NASTY
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    await stack.client.post(turn["links"]["stop"])
    refused = await stack.post(f"/api/v1/sessions/{session}/turns", {"text": "x", "agent": "\ud800\0"})
    assert refused.status_code == 404
    assert "\ud800" in refused.json()["detail"]


async def test_a_long_request_is_kept_whole(stack: Stack) -> None:
    session = await stack.open_session()
    text = "ä" * 300_000
    turn = await stack.begin(session, text)
    assert turn["request_truncated"] is True
    assert text.startswith(turn["request"])
    whole = await stack.client.get(f"{turn['links']['self']}/request")
    assert whole.text == text


async def test_nothing_is_half_created_when_the_ledger_is_gone(stack: Stack) -> None:
    session = await stack.open_session()
    stack.ledger.gone = True
    refused = await stack.client.post(f"/api/v1/sessions/{session}/turns", json={"text": "x"})
    assert refused.status_code == 503
    assert refused.json()["code"] == "storage_unavailable"
    assert int(refused.headers["retry-after"]) > 0
    stack.ledger.gone = False
    assert (await stack.client.get(f"/api/v1/sessions/{session}/turns")).json()["turns"] == []
