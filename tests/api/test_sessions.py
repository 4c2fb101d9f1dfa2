"""Sessions over HTTP."""

from __future__ import annotations

from tests.api.stack import Stack


async def test_a_session_is_opened_listed_closed_and_reopened(stack: Stack) -> None:
    folder = stack.root / "project"
    folder.mkdir()
    opened = await stack.client.post("/api/v1/sessions", json={"workspace": f"{folder}/.", "title": " My  title "})
    assert opened.status_code == 201
    session = opened.json()
    assert opened.headers["location"] == f"/api/v1/sessions/{session['session_id']}"
    assert session["title"] == "My title"
    assert session["workspace"]["path"] == str(folder)
    assert (session["mode"], session["status"], session["agents"]) == ("single", "active", ["coder"])
    assert session["created_at"].endswith("Z")
    assert session["closed_at"] is None
    path = opened.headers["location"]
    assert (await stack.client.get(path)).json() == session

    closed = (await stack.client.post(f"{path}/close")).json()
    assert closed["status"] == "closed"
    assert closed["closed_at"].endswith("Z")
    assert (await stack.client.post(f"{path}/close")).json() == closed
    refused = await stack.client.post(f"{path}/turns", json={"text": "hello"})
    assert refused.status_code == 409
    assert refused.json()["code"] == "session_closed"
    assert "reopen" in refused.json()["fix"]
    reopened = await stack.client.post(f"{path}/reopen")
    assert reopened.json() == session
    assert (await stack.client.post(f"{path}/turns", json={"text": "hello"})).status_code == 202


async def test_sessions_are_paged_newest_first(stack: Stack) -> None:
    ids = [await stack.open_session() for _ in range(7)]
    await stack.client.post(f"/api/v1/sessions/{ids[3]}/close")
    seen: list[str] = []
    query: dict[str, str | int] = {"limit": 3}
    sizes = []
    while True:
        page = (await stack.client.get("/api/v1/sessions", params=query)).json()
        seen.extend(item["session_id"] for item in page["sessions"])
        sizes.append(len(page["sessions"]))
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == ids[::-1]
    assert sizes == [3, 3, 1]
    closed = (await stack.client.get("/api/v1/sessions", params={"status": "closed"})).json()
    assert [item["session_id"] for item in closed["sessions"]] == [ids[3]]
    exact = (await stack.client.get("/api/v1/sessions", params={"limit": 7})).json()
    assert exact["next_cursor"] is None
    unknown = await stack.client.get("/api/v1/sessions", params={"cursor": "ses_none"})
    assert (unknown.status_code, unknown.json()["field"]) == (422, "cursor")


async def test_a_session_with_a_running_turn_is_not_closed(stack: Stack) -> None:
    session = await stack.open_session()
    turn = await stack.begin(session)
    refused = await stack.client.post(f"/api/v1/sessions/{session}/close")
    assert refused.status_code == 409
    assert refused.json()["code"] == "turn_running"
    assert refused.json()["turn_id"] == turn["turn_id"]
