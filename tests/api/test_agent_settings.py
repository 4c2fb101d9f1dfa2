"""Agents over HTTP: read, added, changed and removed in the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milepost.config.agents import AgentFile
from tests.api.stack import Stack

TEXT = "# Ours.\nagents:\n  default: {max_rounds: 3}\n"


@pytest.fixture
def path(stack: Stack, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "milepost.yaml"
    path.write_text(TEXT, encoding="utf-8")
    before = stack.app.state.services
    stack.app.state.services = replace(before, agent_settings=AgentFile(path))
    yield path
    stack.app.state.services = before


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


async def test_agents_are_edited_over_http(stack: Stack, path: Path) -> None:
    client = stack.client
    added = await client.post("/api/v1/agents", json={"agent_id": "tester", "settings": {"tools": ["bash"]}})
    assert added.status_code == 201 and added.headers["location"] == "/api/v1/agents/tester"
    changed = await client.patch("/api/v1/agents/tester", json={"settings": {"context": {"threshold": 70}}})
    assert changed.json()["effective"]["context"]["threshold"] == 70
    assert (await client.get("/api/v1/agents/tester")).json() == changed.json()
    assert "# Ours." in read(path)
    assert (await client.delete("/api/v1/agents/tester")).status_code == 204
    assert read(path) == TEXT


async def test_faults_are_told_with_their_key(stack: Stack, path: Path) -> None:
    client = stack.client

    async def refused(method: str, url: str, body: dict[str, Any] | None, status: int, code: str) -> dict[str, Any]:
        answer = await client.request(method, f"/api/v1/agents{url}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        return dict(answer.json())

    wrong = await refused("PATCH", "/default", {"settings": {"modle": "x"}}, 422, "config_invalid")
    assert wrong["field"] == "agents.default.modle" and wrong["fix"] == "Did you mean 'model'?"
    unknown = await refused("GET", "/defualt", None, 404, "agent_unknown")
    assert unknown["fix"] == "Did you mean 'default'?"
    await refused("POST", "", {"agent_id": "default"}, 409, "agent_exists")
    await refused("POST", "", {"agent_id": "no good"}, 422, "invalid_input")
    await refused("PATCH", "/default", {"settings": {}}, 422, "invalid_input")
    stack.app.state.services = replace(stack.app.state.services, agent_settings=AgentFile(None))
    await refused("PATCH", "/default", {"settings": {"max_rounds": 1}}, 409, "config_read_only")
    assert (await client.get("/api/v1/agents/default")).status_code == 200
