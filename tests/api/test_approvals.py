"""Approvals, policy rules and reconciliation over HTTP, on rows a worker would have written."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.domain.effects import EffectClass, EffectSpec, EffectState
from milepost.domain.tools import Approval as ApprovalPolicy
from milepost.domain.turns import TurnState
from milepost.ports.ledger import LedgerTx
from milepost.services.gate import Gate, pass_gate
from tests.api.stack import Stack, Work

NOW = 1_900_000_000_000_000


async def ask(stack: Stack, session: str, turn_id: str, position: str = "tool.1.0", **changes: Any) -> dict[str, Any]:
    """Bring a call to the gate, as `run_tool` does; returns the approval as the API shows it."""
    work = stack.work(session, turn_id)
    spec = work.spec(position, "tool:bash", EffectClass.ATTACHABLE)
    fields = {"arguments": '{"command":"make"}', "seconds": 3600, "at": NOW} | changes
    gate = Gate(ApprovalPolicy.ASK, "bash", 1, 0, fields["arguments"], fields["seconds"])

    def body(tx: LedgerTx) -> str:
        held = pass_gate(tx, spec, gate, tx.effects.get(spec.effect_id), fields["at"])
        assert held is not None and held.approval is not None
        return held.approval.approval_id

    return await get(stack, f"/api/v1/approvals/{await stack.ledger.write(body)}")


async def get(stack: Stack, path: str) -> dict[str, Any]:
    response = await stack.client.get(path)
    assert response.status_code == 200, response.text
    return dict(response.json())


@pytest.fixture
async def turn(stack: Stack) -> tuple[str, str]:
    session = await stack.open_session()
    turn_id = (await stack.begin(session))["turn_id"]
    await stack.work(session, turn_id).claim()
    return session, turn_id


async def test_an_answer_is_given_once_with_actor_and_reason(stack: Stack, turn: tuple[str, str]) -> None:
    approval = await ask(stack, *turn)
    assert (approval["state"], approval["tool"], approval["arguments"]) == ("pending", "bash", '{"command":"make"}')
    assert (await get(stack, f"/api/v1/turns/{turn[1]}"))["status"] == "waiting_for_person"
    path = f"/api/v1/approvals/{approval['approval_id']}"
    answered = await stack.post(f"{path}/approve", {"reason": "fine", "actor": "anna"})
    assert answered.status_code == 200
    body = answered.json()
    assert (body["state"], body["actor"], body["reason"], body["rule_id"]) == ("approved", "api:anna", "fine", None)
    assert await get(stack, path) == {key: value for key, value in body.items() if key != "rule_id"}
    assert (await get(stack, f"/api/v1/turns/{turn[1]}"))["status"] != "waiting_for_person"
    for verb in ("approve", "reject"):
        again = await stack.client.post(f"{path}/{verb}")
        assert (again.status_code, again.json()["code"]) == (409, "approval_resolved")
    assert (await get(stack, path))["actor"] == "api:anna"


async def test_answers_that_come_too_late(stack: Stack, turn: tuple[str, str]) -> None:
    session, turn_id = turn
    late = await ask(stack, session, turn_id, at=1_000_000)
    assert late["state"] == "expired"
    refused = await stack.client.post(f"/api/v1/approvals/{late['approval_id']}/approve")
    assert (refused.status_code, refused.json()["code"]) == (409, "approval_expired")
    other = await ask(stack, session, turn_id, "tool.1.1")
    await stack.work(session, turn_id).end(TurnState.STOPPED, "Stopped by a person.")
    for approval in (late, other):
        refused = await stack.client.post(f"/api/v1/approvals/{approval['approval_id']}/reject")
        assert (refused.status_code, refused.json()["code"]) == (409, "turn_not_running")
        closed = await get(stack, f"/api/v1/approvals/{approval['approval_id']}")
        assert (closed["state"], "stopped" in closed["reason"]) == ("closed", True)
    missing = await stack.client.post("/api/v1/approvals/apr_0/approve")
    assert (missing.status_code, missing.json()["code"]) == (404, "approval_not_found")
    assert (await stack.client.post("/api/v1/approvals/%00/approve")).status_code == 404


async def test_pending_approvals_come_first_page_by_page(stack: Stack, turn: tuple[str, str]) -> None:
    session, turn_id = turn
    asked = [(await ask(stack, session, turn_id, f"tool.1.{n}", at=NOW + n // 2))["approval_id"] for n in range(7)]
    for approval_id in asked[4:]:
        await stack.client.post(f"/api/v1/approvals/{approval_id}/reject")
    everything = (await get(stack, "/api/v1/approvals"))["approvals"]
    assert {item["approval_id"] for item in everything[:4]} == set(asked[:4])
    paged: list[str] = []
    cursor = ""
    for _ in range(4):
        page = await get(stack, f"/api/v1/approvals?session_id={session}&limit=2{cursor}")
        paged += [item["approval_id"] for item in page["approvals"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert page["next_cursor"] is None
    assert paged == [item["approval_id"] for item in everything]
    assert len((await get(stack, "/api/v1/approvals?state=rejected"))["approvals"]) == 3
    other = await stack.open_session()
    assert (await get(stack, f"/api/v1/approvals?session_id={other}"))["approvals"] == []
    assert (await stack.client.get("/api/v1/approvals?session_id=ses_none")).status_code == 404
    assert (await stack.client.get("/api/v1/approvals?cursor=apr_none")).status_code == 422
    assert (await stack.client.get("/api/v1/approvals?state=maybe")).status_code == 422


async def test_rules_are_made_with_an_answer_or_directly_listed_and_revoked(
    stack: Stack, turn: tuple[str, str]
) -> None:
    approval = await ask(stack, *turn)
    path = f"/api/v1/approvals/{approval['approval_id']}/reject"
    assert (await stack.post(path, {"remember": "for ever"})).status_code == 422
    answered = await stack.post(path, {"remember": "any_agent_tool", "reason": "never"})
    remembered = answered.json()["rule_id"]
    made = await stack.post("/api/v1/policy-rules", {"verdict": "allow", "agent": "coder", "tool": "bash"})
    assert made.status_code == 201
    direct = made.json()
    assert (direct["created_by"], direct["active"], direct["approval_id"]) == ("api", True, None)
    rules = (await get(stack, "/api/v1/policy-rules"))["rules"]
    assert [rule["rule_id"] for rule in rules] == [direct["rule_id"], remembered]
    assert (rules[1]["agent"], rules[1]["tool"], rules[1]["verdict"]) == (None, "bash", "deny")
    assert rules[1]["approval_id"] == approval["approval_id"]
    first = await get(stack, "/api/v1/policy-rules?limit=1")
    second = await get(stack, f"/api/v1/policy-rules?limit=1&cursor={first['next_cursor']}")
    assert [*first["rules"], *second["rules"]] == rules
    for _ in range(2):
        revoked = await stack.post(f"/api/v1/policy-rules/{remembered}/revoke", {"actor": "anna"})
        assert (revoked.status_code, revoked.json()["revoked_by"], revoked.json()["active"]) == (200, "api:anna", False)
    assert [rule["rule_id"] for rule in (await get(stack, "/api/v1/policy-rules"))["rules"]] == [direct["rule_id"]]
    assert len((await get(stack, "/api/v1/policy-rules?all=true"))["rules"]) == 2
    assert (await stack.client.post("/api/v1/policy-rules/rul_0/revoke")).status_code == 404
    too_wide = await stack.post("/api/v1/policy-rules", {"verdict": "allow"})
    assert (too_wide.status_code, too_wide.json()["field"]) == (422, "tool")
    assert (await stack.post("/api/v1/policy-rules", {"verdict": "deny"})).status_code == 201


async def lost(stack: Stack, work: Work) -> EffectSpec:
    spec = work.spec("tool.1.0", "tool:bash", EffectClass.ATTACHABLE)
    await work.redispatch(spec)
    await stack.ledger.write(lambda tx: tx.effects.settle(spec.effect_id, 1, EffectState.UNCERTAIN, NOW, None))
    return spec


@pytest.mark.parametrize(
    ("resolution", "state", "error"),
    [
        ("applied", "succeeded", None),
        ("not_applied", "failed", "not_applied"),
        ("compensated", "failed", "compensated"),
    ],
)
async def test_an_uncertain_effect_is_reconciled_once_also_after_its_turn(
    stack: Stack, turn: tuple[str, str], resolution: str, state: str, error: str | None
) -> None:
    session, turn_id = turn
    work = stack.work(session, turn_id)
    spec = await lost(stack, work)
    await work.end(TurnState.COMPLETED)
    path = f"/api/v1/effects/{spec.effect_id}/reconcile"
    body = {"resolution": resolution, "reason": "looked", "evidence": "commit 1f", "actor": "anna"}
    if resolution == "applied":
        body["result"] = "created \ud800 issue 7"
    else:
        assert (await stack.post(path, body | {"result": "x"})).status_code == 422
    settled = await stack.post(path, body)
    assert settled.status_code == 200, settled.text
    assert settled.json()["state"] == state
    assert (settled.json()["error"] or {}).get("code") == error
    again = await stack.post(path, body)
    assert (again.status_code, again.json()["code"]) == (409, "effect_not_uncertain")
    stored = await stack.ledger.read(lambda tx: tx.events.find(session, f"{spec.effect_id}/reconciled"))
    assert stored is not None
    for text in (resolution, "api:anna", "looked", "commit 1f"):
        assert text.encode() in stored.payload
    assert (await get(stack, f"/api/v1/turns/{turn_id}"))["state"] == "completed"


async def test_what_cannot_be_reconciled(stack: Stack, turn: tuple[str, str]) -> None:
    work = stack.work(*turn)
    spec = work.spec("tool.1.0", "tool:bash", EffectClass.ATTACHABLE)
    await work.redispatch(spec)
    path = f"/api/v1/effects/{spec.effect_id}/reconcile"
    running = await stack.post(path, {"resolution": "applied"})
    assert (running.status_code, running.json()["code"]) == (409, "effect_not_uncertain")
    assert (await stack.post(f"/api/v1/effects/{'0' * 64}/reconcile", {"resolution": "applied"})).status_code == 404
    assert (await stack.post(path, {"resolution": "late"})).status_code == 422
    assert (await stack.post(path, {})).status_code == 422
