"""Rewind and retry over HTTP."""

from __future__ import annotations

from tests.api.stack import Stack


async def _turn(stack: Stack, session: str, text: str) -> str:
    turn = await stack.begin(session, text)
    work = stack.work(session, turn["turn_id"])
    await work.claim()
    await work.start_agent()
    spec, attempt = await work.start_call()
    await work.finish_call(spec, attempt, f"answer to {text}")
    await work.end()
    return str(turn["turn_id"])


async def test_rewind(stack: Stack) -> None:
    session = await stack.open_session()
    turns = [await _turn(stack, session, text) for text in ("one", "two", "three")]
    path = f"/api/v1/sessions/{session}/rewind"
    dry = (await stack.post(path, {"to_turn": turns[0], "dry_run": True})).json()
    assert dry["dry_run"] and dry["rewind_id"] is None and dry["superseded"] == 2
    assert [turn["number"] for turn in dry["turns"]] == [3, 2]
    done = await stack.post(path, {"to_number": 1, "reason": "no"})
    assert done.status_code == 200 and done.json() == dry | {"dry_run": False, "rewind_id": done.json()["rewind_id"]}
    assert (await stack.client.get(f"/api/v1/turns/{turns[2]}")).json()["superseded"]
    listed = (await stack.client.get(f"/api/v1/sessions/{session}/rewinds")).json()
    assert [(item["rewind_id"], item["actor"], item["reason"]) for item in listed["rewinds"]] == [
        (done.json()["rewind_id"], "api", "no")
    ]
    refused = await stack.post(path, {"to_number": 3})
    assert (refused.status_code, refused.json()["code"]) == (409, "turn_superseded")
    running = await stack.begin(session, "four")
    refused = await stack.post(path, {"to_number": 0})
    assert refused.status_code == 409 and refused.json()["turn_id"] == running["turn_id"]
    assert (await stack.post(path, {})).status_code == 422


async def test_retry(stack: Stack) -> None:
    session = await stack.open_session()
    old = await _turn(stack, session, "one")
    path = f"/api/v1/turns/{old}/retry"
    dry = await stack.post(path, {"dry_run": True})
    assert dry.status_code == 200 and dry.json()["request"] == "one" and dry.json()["retry_of"] == old
    new = await stack.post(path, {"turn_id": "again"})
    assert new.status_code == 202 and new.json()["retry_of"] == old and new.headers["Location"].endswith("/again")
    assert (await stack.post(path, {"turn_id": "again"})).status_code == 200
    assert (await stack.post(path, {"turn_id": "more"})).json()["code"] == "turn_running"


async def test_history_has_the_boundaries_and_what_is_live(stack: Stack) -> None:
    session = await stack.open_session()
    for n in range(4):
        turn = await stack.begin(session, f"request {n}")
        await stack.work(session, turn["turn_id"]).end()
    await stack.post(f"/api/v1/sessions/{session}/rewind", {"to_number": 2})
    for n in range(2):
        turn = await stack.begin(session, f"later {n}")
        if n == 0:
            await stack.work(session, turn["turn_id"]).end()
    path = f"/api/v1/sessions/{session}/history"
    whole = (await stack.client.get(path)).json()
    assert [item["number"] for item in whole["turns"]] == [6, 5, 2, 1]
    assert [(item["to_number"], item["last_number"]) for item in whole["rewinds"]] == [(2, 4)]
    assert whole["session_status"] == "active"
    assert whole["active_turn"] == {
        "turn_id": turn["turn_id"],
        "number": 6,
        "state": "running",
        "status": "waiting",
    }
    where = []
    cursor: int | None = None
    while True:
        query = {"limit": 1, "superseded": True} | ({} if cursor is None else {"cursor": cursor})
        page = (await stack.client.get(path, params=query)).json()
        where.append((page["turns"][0]["number"], len(page["rewinds"])))
        assert page["active_turn"]["number"] == 6
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert where == [(6, 0), (5, 0), (4, 1), (3, 0), (2, 0), (1, 0)]


async def test_fork(stack: Stack) -> None:
    session = await stack.open_session()
    turns = [await _turn(stack, session, text) for text in ("one", "two")]
    path = f"/api/v1/sessions/{session}/fork"
    dry = await stack.post(path, {"to_turn": turns[0], "dry_run": True})
    assert dry.status_code == 200 and (dry.json()["turns"], dry.json()["session"]) == (1, None)
    made = await stack.post(path, {"to_number": 1, "title": "another way"})
    assert made.status_code == 201 and made.json()["state"] == "done" and made.json()["turns"] == 1
    fork = made.json()["session"]
    assert made.headers["Location"].endswith(fork["session_id"]) and fork["title"] == "another way"
    (turn,) = (await stack.client.get(f"/api/v1/sessions/{fork['session_id']}/history")).json()["turns"]
    assert (turn["copied_from"], turn["output"], turn["status"]) == (turns[0], "answer to one", "ended")
    inside = {"files": True, "workspace": str(stack.root / "copy")}
    made = await stack.post(path, inside)
    assert made.status_code == 201 and made.json()["session"]["workspace"]["path"] == str(stack.root / "copy")
    for bad in ({"files": True}, {"workspace": "relative"}, {"to_number": 1, "to_turn": turns[0]}):
        assert (await stack.post(path, bad)).status_code == 422


async def test_changes_and_files(stack: Stack) -> None:
    session = await stack.open_session()
    turn = await _turn(stack, session, "one")
    found = (await stack.client.get(f"/api/v1/turns/{turn}/changes")).json()
    assert (found["before"], found["files"]) == (None, [])
    path = f"/api/v1/sessions/{session}/rewind"
    assert (await stack.post(path, {"to_number": 0, "overwrite": True})).status_code == 422
    report = (await stack.post(path, {"to_number": 0, "files": True})).json()
    assert report["files"]["done"] and report["files"]["count"] == 0
