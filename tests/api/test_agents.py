"""Agents and consolidations over HTTP and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import commands
from milepost.domain.consolidation import Consolidation, ConsolidationState, Promotion
from tests.api.stack import AGENT, Stack
from tests.api.test_rewinds import _turn as finished_turn
from tests.cli.conftest import NO_TOOLS


async def test_an_agent_is_stopped_and_started(stack: Stack) -> None:
    (only,) = (await stack.client.get("/api/v1/agents")).json()["agents"]
    assert (only["agent"], only["state"], only["turns"], only["stopped_at"]) == (AGENT, "registered", [], None)
    session = await stack.open_session()
    turn = await stack.begin(session, "one")
    (only,) = (await stack.client.get("/api/v1/agents")).json()["agents"]
    assert (only["state"], only["turns"]) == ("running", [turn["turn_id"]])
    stopped = (await stack.post(f"/api/v1/agents/{AGENT}/stop", {"reason": "enough"})).json()
    assert (stopped["state"], stopped["stopped_by"], stopped["reason"]) == ("stopped", "api", "enough")
    # Nobody had begun the turn, so it is stopped at once.
    assert (await stack.client.get(f"/api/v1/turns/{turn['turn_id']}")).json()["state"] == "stopped"
    refused = await stack.post(f"/api/v1/sessions/{session}/turns", {"text": "two"})
    assert (refused.status_code, refused.json()["code"]) == (409, "agent_stopped")
    assert (await stack.post(f"/api/v1/turns/{turn['turn_id']}/retry", {})).json()["code"] == "agent_stopped"
    started = (await stack.client.post(f"/api/v1/agents/{AGENT}/start")).json()
    assert (started["state"], started["stopped_at"]) == ("idle", None)
    assert (await stack.post(f"/api/v1/sessions/{session}/turns", {"text": "two"})).status_code == 202
    assert (await stack.post("/api/v1/agents/nobody/stop", {})).status_code == 404
    misspelled = await stack.post(f"/api/v1/agents/{AGENT}x/stop", {})
    assert misspelled.json()["fix"].startswith(f"Did you mean '{AGENT}'? Known agents: ")


async def test_consolidations_are_listed_and_decided(stack: Stack) -> None:
    session = await stack.open_session()
    turn_id = await finished_turn(stack, session, "one")

    def made(number: int, state: ConsolidationState) -> Consolidation:
        promotions = (Promotion("absent", f"fact {number}", ("r1",), 0),)
        return Consolidation(
            f"cns_{number}", session, AGENT, state, turn_id, 1, number, number, number, 1, promotions=promotions
        )

    for number, state in (
        (1, ConsolidationState.PENDING),
        (2, ConsolidationState.FAILED),
        (3, ConsolidationState.PENDING),
    ):
        await stack.ledger.write(lambda tx: tx.consolidations.add(made(number, state)))  # noqa: B023
    path = "/api/v1/consolidations"
    first = (await stack.client.get(path, params={"limit": 2})).json()
    assert [item["consolidation_id"] for item in first["consolidations"]] == ["cns_3", "cns_2"]
    rest = (await stack.client.get(path, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [item["consolidation_id"] for item in rest["consolidations"]] == ["cns_1"] and rest["next_cursor"] is None
    pending = (await stack.client.get(path, params={"state": "pending", "session_id": session})).json()
    assert [item["consolidation_id"] for item in pending["consolidations"]] == ["cns_3", "cns_1"]
    rejected = (await stack.post(f"{path}/cns_1/reject", {"reason": "no"})).json()
    assert (rejected["state"], rejected["error"], rejected["actor"]) == ("rejected", "no", "api")
    # The agent has no such block.
    applied = (await stack.client.post(f"{path}/cns_3/apply")).json()
    assert applied["state"] == "empty" and "no block 'absent'" in applied["promotions"][0]["problem"]
    for action in ("apply", "revert"):
        again = await stack.client.post(f"{path}/cns_3/{action}")
        assert (again.status_code, again.json()["code"]) == (409, "consolidation_settled")
    assert (await stack.client.get(f"{path}/cns_2")).json()["promotions"][0]["text"] == "fact 2"
    missing = await stack.client.get(f"{path}/cns_9")
    assert (missing.status_code, missing.json()["code"]) == (404, "consolidation_not_found")


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "milepost.yaml").write_text(NO_TOOLS)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("MILEPOST_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(commands, list(arguments))
        return done.exit_code, done.output

    assert run("agents", "stop", "default", "--reason", "rest") == (0, "Agent default is stopped.\n")
    code, text = run("agents", "list", "--json")
    assert code == 0 and json.loads(text)["agents"][0]["reason"] == "rest"
    assert "stopped" in run("agents", "list")[1]
    assert run("agents", "start", "default") == (0, "Agent default is registered.\n")
    assert run("consolidations", "list", "--json") == (0, '{\n  "consolidations": []\n}\n')
    assert run("consolidations", "show", "cns_1")[0] == 1
