"""Policy rules: remembered decisions about calls to come."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Connection, and_, bindparam, insert, or_, select, update

from milepost.domain.approvals import PolicyRule, Verdict
from milepost.domain.errors import PolicyRuleNotFound
from milepost.storage.columns import Utf8
from milepost.storage.tables import policy_rules as rules

MAX_MATCHING = 1000

_THIS = rules.c.rule_id == bindparam("rule")
_UNUSED = rules.c.used_by.is_(None)
_GET = select(rules).where(_THIS)
_MATCHING = (
    select(rules)
    .where(
        rules.c.revoked_at.is_(None),
        or_(_UNUSED, rules.c.used_by == bindparam("effect")),
        or_(rules.c.agent.is_(None), rules.c.agent == bindparam("of_agent", type_=Utf8)),
        or_(rules.c.tool.is_(None), rules.c.tool == bindparam("of_tool", type_=Utf8)),
    )
    .order_by(rules.c.created_at.desc())
    .limit(MAX_MATCHING)
)
_USE = (
    update(rules)
    .where(_THIS, rules.c.revoked_at.is_(None), or_(_UNUSED, rules.c.used_by == bindparam("effect")))
    .values(used_by=bindparam("effect"), used_at=bindparam("now"))
)
_REVOKE = (
    update(rules)
    .where(_THIS, rules.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("now"), revoked_by=bindparam("by"))
)
_PAGE = (
    select(rules).order_by(rules.c.created_at.desc(), rules.c.rule_id.desc()).limit(bindparam("page", type_=BigInteger))
)


class SqlPolicyRules:
    """`ports.ledger.PolicyRules`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def add(self, rule: PolicyRule) -> None:
        values = {column.name: getattr(rule, column.name) for column in rules.c}
        self._conn.execute(insert(rules), {**values, "verdict": rule.verdict.value})

    def get(self, rule_id: str) -> PolicyRule:
        row = self._conn.execute(_GET, {"rule": rule_id}).first()
        if row is None:
            raise PolicyRuleNotFound(
                f"There is no policy rule {rule_id}.", fix="List them with `milepost policies list`."
            )
        return _rule(row)

    def matching(self, agent: str, tool: str, effect_id: str) -> list[PolicyRule]:
        params = {"of_agent": agent, "of_tool": tool, "effect": effect_id}
        return [_rule(row) for row in self._conn.execute(_MATCHING, params)]

    def use(self, rule_id: str, effect_id: str, at: int) -> bool:
        return self._conn.execute(_USE, {"rule": rule_id, "effect": effect_id, "now": at}).rowcount == 1

    def revoke(self, rule_id: str, at: int, actor: str) -> PolicyRule:
        self._conn.execute(_REVOKE, {"rule": rule_id, "now": at, "by": actor})
        return self.get(rule_id)

    def page(self, *, active: bool, after: str | None, limit: int) -> list[PolicyRule]:
        query = _PAGE
        if active:
            query = query.where(rules.c.revoked_at.is_(None), _UNUSED)
        if after is not None:
            last = self.get(after)
            query = query.where(
                or_(
                    rules.c.created_at < last.created_at,
                    and_(rules.c.created_at == last.created_at, rules.c.rule_id < after),
                )
            )
        return [_rule(row) for row in self._conn.execute(query, {"page": limit})]


def _rule(row: Any) -> PolicyRule:
    return PolicyRule(**{**row._mapping, "verdict": Verdict(row.verdict)})
