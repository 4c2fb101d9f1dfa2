"""Which policy rule decides a call, and the identity of an approval."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from milepost.domain.approvals import PolicyRule, Verdict

_AGENT, _TOOL = 2, 1
_ID_DIGITS = 32


def approval_id(turn_id: str, generation: int, agent: str, position: str, tool: str, input_digest: str) -> str:
    """The id of the question about one call with exactly these arguments; the same after every replay and restart."""
    parts = ("approval", turn_id, str(generation), agent, position, tool, input_digest)
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return f"apr_{hashlib.sha256(joined.encode('utf-8', 'surrogatepass')).hexdigest()[:_ID_DIGITS]}"


def specificity(rule: PolicyRule) -> int:
    """How narrow a rule is: 2 for naming an agent, 1 for naming a tool."""
    return (_AGENT if rule.agent is not None else 0) + (_TOOL if rule.tool is not None else 0)


def matches(rule: PolicyRule, agent: str, tool: str, effect_id: str) -> bool:
    """Whether a rule covers a call: not revoked, not used up by another call, and of this agent and tool."""
    return (
        rule.revoked_at is None
        and rule.used_by in (None, effect_id)
        and rule.agent in (None, agent)
        and rule.tool in (None, tool)
    )


def deciding(rules: Iterable[PolicyRule]) -> PolicyRule | None:
    """The rule that decides among those that match: the most specific; deny wins a tie, then the newest rule."""
    return max(
        rules,
        key=lambda rule: (specificity(rule), rule.verdict is Verdict.DENY, rule.created_at, rule.rule_id),
        default=None,
    )
