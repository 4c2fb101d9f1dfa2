"""Skills over HTTP: what there is, and what a Session has."""

from __future__ import annotations

from pathlib import Path

from tests.api.stack import Stack


async def test_a_session_has_the_skills_that_were_chosen(stack: Stack, tmp_path: Path) -> None:
    client = stack.client
    listed = (await client.get("/api/v1/skills")).json()
    assert [skill["skill_id"] for skill in listed["skills"]] == ["code-review", "debugging", "writing-tests"]
    body = {"workspace": str(tmp_path), "skills": ["debugging", "code-review"]}
    opened = (await client.post("/api/v1/sessions", json=body)).json()
    assert opened["skills"] == ["code-review", "debugging"]
    url = f"/api/v1/sessions/{opened['session_id']}/skills"
    for wanted in ([], ["debugging"], None):
        assert (await client.put(url, json={"skills": wanted})).json()["skills"] == wanted
        assert (await client.get(f"/api/v1/sessions/{opened['session_id']}")).json()["skills"] == wanted
    refused = await client.put(url, json={"skills": ["debuging"]})
    assert (refused.status_code, refused.json()["fix"]) == (422, "Did you mean 'debugging'?")
    again = await client.post("/api/v1/sessions", json=body | {"skills": ["nothing at all"]})
    assert again.status_code == 422 and again.json()["field"] == "skills"
