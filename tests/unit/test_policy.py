"""Policy rules: which one decides; approvals: the identity of a question."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from milepost.domain.approvals import PolicyRule, Verdict
from milepost.domain.tools import ANY_TOOL, BUILTIN_TOOL_POLICIES, Approval, tool_approval
from milepost.engine.policy import approval_id, deciding, matches, specificity

ALLOW, DENY = Verdict.ALLOW, Verdict.DENY


def rule(agent: str | None, tool: str | None, verdict: Verdict, at: int = 0, **more: object) -> PolicyRule:
    name = f"{agent}/{tool}/{verdict}/{at}"
    return PolicyRule(name, agent, tool, verdict, bool(more.pop("once", False)), at, "anna", **more)  # type: ignore[arg-type]


def test_the_agent_counts_two_and_the_tool_one() -> None:
    counted = {(agent, tool): specificity(rule(agent, tool, ALLOW)) for agent in ("a", None) for tool in ("t", None)}
    assert counted == {("a", "t"): 3, ("a", None): 2, (None, "t"): 1, (None, None): 0}


@pytest.mark.parametrize(
    ("given", "winner"),
    [
        ([], None),
        ([(None, None, DENY)], (None, None, DENY)),
        ([(None, None, DENY), (None, "t", ALLOW)], (None, "t", ALLOW)),
        ([(None, "t", DENY), ("a", None, ALLOW)], ("a", None, ALLOW)),
        ([("a", None, DENY), ("a", "t", ALLOW)], ("a", "t", ALLOW)),
        ([("a", "t", DENY), ("a", None, ALLOW), (None, "t", ALLOW), (None, None, ALLOW)], ("a", "t", DENY)),
        ([("a", "t", ALLOW), ("a", "t", DENY)], ("a", "t", DENY)),
        ([(None, "t", ALLOW), (None, "t", DENY)], (None, "t", DENY)),
        ([("a", None, ALLOW), (None, "t", DENY)], ("a", None, ALLOW)),
    ],
)
def test_precedence(given: list[tuple[str | None, str | None, Verdict]], winner: object) -> None:
    # Newer rules do not win over deny, and the order in which they are found does not matter.
    for times in product((1, 2), repeat=len(given)):
        rules = [rule(*each, at) for each, at in zip(given, times, strict=True)]
        for order in permutations(rules):
            found = deciding(order)
            assert (found and (found.agent, found.tool, found.verdict)) == winner


def test_which_calls_a_rule_covers() -> None:
    assert matches(rule("a", "t", ALLOW), "a", "t", "e")
    assert matches(rule(None, None, ALLOW), "a", "t", "e")
    assert not matches(rule("b", None, ALLOW), "a", "t", "e")
    assert not matches(rule(None, "u", ALLOW), "a", "t", "e")
    assert not matches(rule("a", "t", ALLOW, revoked_at=1), "a", "t", "e")
    used = rule("a", "t", ALLOW, once=True, used_by="e", used_at=1)
    assert matches(used, "a", "t", "e") and not matches(used, "a", "t", "another")
    assert not used.active and rule("a", "t", ALLOW).active


def test_a_question_is_about_one_call_with_exactly_these_arguments() -> None:
    base = ("turn", 0, "agent", "tool.1.0", "bash", "d" * 64)
    changed = [("turn2",), (1,), ("agent2",), ("tool.1.1",), ("write_file",), ("e" * 64,)]
    ids = {approval_id(*base)}
    for place, (value,) in enumerate(changed):
        ids.add(approval_id(*base[:place], value, *base[place + 1 :]))  # type: ignore[arg-type]
    assert len(ids) == 7
    assert approval_id(*base) == approval_id(*base)
    assert approval_id("ab", 0, "c", "p", "t", "d") != approval_id("a", 0, "bc", "p", "t", "d")


def test_an_agents_policy_by_tool() -> None:
    for tool, policy in BUILTIN_TOOL_POLICIES.items():
        assert tool_approval(tool, {}) is policy.approval
    assert tool_approval("from_elsewhere", {}) is Approval.ASK
    chosen = {"bash": Approval.ALLOW, ANY_TOOL: Approval.ASK}
    assert tool_approval("bash", chosen) is Approval.ALLOW
    assert tool_approval("write_file", chosen) is Approval.ASK
