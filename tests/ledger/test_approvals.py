"""Approvals and policy rules as rows: one end each, one use each, whoever is faster."""

from __future__ import annotations

import pytest

from milepost.domain.approvals import Approval, ApprovalState, PolicyRule, Verdict
from milepost.domain.effects import EffectState
from milepost.domain.errors import ApprovalNotFound, IllegalTransition, PolicyRuleNotFound
from milepost.ports.ledger import Ledger
from tests.ledger.samples import NASTY, in_parallel, new_turn, refused, spec
from tests.support.databases import OpenLedger


async def _asked(ledger: Ledger) -> Approval:
    turn = await new_turn(ledger)
    effect = spec(turn)
    approval = Approval(
        approval_id=f"apr_{effect.effect_id}",
        effect_id=effect.effect_id,
        session_id=turn.session_id,
        turn_id=turn.turn_id,
        agent=NASTY,
        tool=NASTY,
        call_id=NASTY,
        input_digest="d" * 64,
        preview=NASTY,
        truncated=True,
        state=ApprovalState.PENDING,
        requested_at=5,
        expires_at=9,
    )
    await ledger.write(lambda tx: (tx.effects.hold(effect, 5), tx.approvals.add(approval)))
    return approval


async def test_of_many_answers_at_once_one_counts(ledger: Ledger) -> None:
    approval = await _asked(ledger)
    assert await ledger.read(lambda tx: tx.approvals.of_effect(approval.effect_id)) == approval
    states = [ApprovalState.APPROVED, ApprovalState.REJECTED, ApprovalState.EXPIRED] * 2

    async def answer(n: int) -> Approval | None:
        return await ledger.write(
            lambda tx: tx.approvals.resolve(approval.approval_id, states[n], n, f"{n}{NASTY}", NASTY)
        )

    results = await in_parallel(6, answer)
    (winner,) = [result for result in results if result is not None]
    assert await ledger.read(lambda tx: tx.approvals.get(approval.approval_id)) == winner
    assert winner.reason == NASTY and winner.state is not ApprovalState.PENDING
    assert await ledger.read(lambda tx: tx.approvals.pending_of_turn(approval.turn_id, 9)) == []
    with pytest.raises(ApprovalNotFound):
        await ledger.read(lambda tx: tx.approvals.get("apr_none"))


async def test_what_was_held_is_dispatched_or_denied_once(ledger: Ledger) -> None:
    turn = await new_turn(ledger)
    held, denied = spec(turn), spec(turn)
    for _ in range(2):
        first = await ledger.write(lambda tx: tx.effects.hold(held, 1))
        second = await ledger.write(lambda tx: tx.effects.deny(denied, 1, "denied_by_rule", NASTY))
    assert (first.state, first.attempt, first.worker) == (EffectState.AWAITING_APPROVAL, 0, None)
    assert (second.state, second.error_message, second.finished_at) == (EffectState.DENIED, NASTY, 1)
    assert (await ledger.write(lambda tx: tx.effects.dispatch(held, 2, "w"))).attempt == 1
    assert (await ledger.write(lambda tx: tx.effects.hold(held, 3))).state is EffectState.DISPATCHED
    with pytest.raises(IllegalTransition):
        await ledger.write(lambda tx: tx.effects.dispatch(denied, 2, "w"))


def _rule(name: str, at: int = 1, **changes: object) -> PolicyRule:
    values: dict[str, object] = {"agent": None, "tool": None, "verdict": Verdict.ALLOW, "once": False}
    return PolicyRule(rule_id=name, created_at=at, created_by=NASTY, reason=NASTY, **{**values, **changes})  # type: ignore[arg-type]


async def test_rules_match_by_agent_tool_and_use(ledger: Ledger) -> None:
    rules = [
        _rule("any"),
        _rule("agent", 2, agent=NASTY),
        _rule("tool", 3, tool="t"),
        _rule("both", 4, agent=NASTY, tool="t", verdict=Verdict.DENY),
        _rule("once", 5, agent=NASTY, tool="t", once=True),
        _rule("other", 6, agent="b", tool="t"),
    ]
    for rule in rules:
        await ledger.write(lambda tx, rule=rule: tx.rules.add(rule))

    async def matching(agent: str, tool: str, effect: str) -> set[str]:
        found = await ledger.read(lambda tx: tx.rules.matching(agent, tool, effect))
        return {rule.rule_id for rule in found}

    assert await matching(NASTY, "t", "e0") == {"any", "agent", "tool", "both", "once"}
    assert await matching("b", "u", "e0") == {"any"}
    used = await in_parallel(5, lambda n: ledger.write(lambda tx: tx.rules.use("once", f"e{n}", n)))
    assert used.count(True) == 1
    winner = f"e{used.index(True)}"
    assert await ledger.write(lambda tx: tx.rules.use("once", winner, 9)), "a call that comes again has it still"
    assert "once" in await matching(NASTY, "t", winner) and "once" not in await matching(NASTY, "t", "another")
    for n in range(2):
        revoked = await ledger.write(lambda tx, n=n: tx.rules.revoke("both", n + 1, f"{n}"))
    assert (revoked.revoked_at, revoked.revoked_by) == (1, "0")
    assert "both" not in await matching(NASTY, "t", "e0")
    active = await ledger.read(lambda tx: tx.rules.page(active=True, after=None, limit=9))
    assert [rule.rule_id for rule in active] == ["other", "tool", "agent", "any"]
    assert active[-1] == rules[0]
    rest = await ledger.read(lambda tx: tx.rules.page(active=False, after="once", limit=2))
    assert [rule.rule_id for rule in rest] == ["both", "tool"]
    with pytest.raises(PolicyRuleNotFound):
        await ledger.write(lambda tx: tx.rules.revoke("none", 1, "a"))


async def test_the_database_itself_refuses_unknown_states(opened: OpenLedger) -> None:
    await _asked(opened.ledger)
    await opened.ledger.write(lambda tx: tx.rules.add(_rule("r")))
    assert refused(opened.url, "UPDATE approvals SET state = 'maybe'")
    assert refused(opened.url, "UPDATE approvals SET state = 'approved'"), "without the time of it"
    assert refused(opened.url, "UPDATE policy_rules SET verdict = 'maybe'")
