"""Approvals, policy rules, reconciliations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from api.schemas.base import Body, Query, Shape, at_most
from api.schemas.sessions import ID_PATTERN, MAX_LIMIT
from api.schemas.turns import Name, Reason
from api.times import rfc3339, rfc3339_or_none
from milepost.domain.approvals import Approval, ApprovalState, PolicyRule, RuleScope, Verdict
from milepost.domain.effects import Resolution
from milepost.services.approvals import Answer, NewRule
from milepost.services.outcomes import MAX_RESULT_CHARACTERS, Reconciliation

Person = Annotated[str, *at_most(200)]
ResultText = Annotated[str, *at_most(MAX_RESULT_CHARACTERS)]


def named(door: str, person: str | None) -> str:
    """Who did it, for the ledger: the door the request came through, and the person it names."""
    return f"{door}:{person}" if person else door


class ApprovalsQuery(Query):
    """Which approvals."""

    session_id: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    state: ApprovalState | None = None
    cursor: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50


class ApprovalAnswer(Body):
    """Why, who, and whether calls to come are decided alike: `once` (no), `agent_tool` or `any_agent_tool`."""

    reason: Reason | None = None
    actor: Annotated[Person | None, Field(description="Name of the person who answers.")] = None
    remember: Literal["once", "agent_tool", "any_agent_tool"] = "once"

    def command(self, door: str, *, approve: bool) -> Answer:
        """What the service gets."""
        return Answer(approve, named(door, self.actor), self.reason, RuleScope(self.remember))


class ApprovalShape(Shape):
    """A question about one call. Times are RFC 3339 in UTC."""

    approval_id: str
    effect_id: str
    session_id: str
    turn_id: str
    agent: str
    tool: str
    call_id: str
    input_digest: str
    """SHA-256 of the exact arguments."""
    arguments: str
    """At most 2,000 characters of them."""
    truncated: bool
    state: str
    """pending, approved, rejected, expired, or closed (the turn ended first)."""
    actor: str | None
    reason: str | None
    requested_at: str
    expires_at: str
    resolved_at: str | None

    @classmethod
    def of(cls, approval: Approval) -> ApprovalShape:
        return cls(
            approval_id=approval.approval_id,
            effect_id=approval.effect_id,
            session_id=approval.session_id,
            turn_id=approval.turn_id,
            agent=approval.agent,
            tool=approval.tool,
            call_id=approval.call_id,
            input_digest=approval.input_digest,
            arguments=approval.preview,
            truncated=approval.truncated,
            state=approval.state.value,
            actor=approval.actor,
            reason=approval.reason,
            requested_at=rfc3339(approval.requested_at),
            expires_at=rfc3339(approval.expires_at),
            resolved_at=rfc3339_or_none(approval.resolved_at),
        )


class AnsweredApproval(ApprovalShape):
    """An answered approval, with the rule that remembers the answer."""

    rule_id: str | None


class ApprovalPage(Shape):
    """Pending first, then newest first. `next_cursor` continues the list, null at its end."""

    approvals: list[ApprovalShape]
    next_cursor: str | None


class RulesQuery(Query):
    """Which policy rules; `all` also shows revoked and used ones."""

    all: bool = False
    cursor: Annotated[str | None, Field(pattern=ID_PATTERN)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT)] = 50


class RuleNew(Body):
    """A decision about calls to come. Without `agent` it is about every agent, without `tool` about every tool."""

    verdict: Literal["allow", "deny"]
    agent: Name | None = None
    tool: Name | None = None
    once: Annotated[bool, Field(description="Decides the next matching call and is used up.")] = False
    reason: Reason | None = None
    actor: Person | None = None

    def command(self, door: str) -> NewRule:
        """What the service gets."""
        by = named(door, self.actor)
        return NewRule(Verdict(self.verdict), by, self.agent, self.tool, self.once, self.reason)


class RuleRevoke(Body):
    """Who revokes."""

    actor: Person | None = None


class RuleShape(Shape):
    """A policy rule. Times are RFC 3339 in UTC."""

    rule_id: str
    agent: str | None
    tool: str | None
    verdict: str
    once: bool
    active: bool
    reason: str | None
    approval_id: str | None
    """The approval whose answer it remembers."""
    created_by: str
    created_at: str
    used_by: str | None
    """The effect it decided, of a rule that counts once."""
    used_at: str | None
    revoked_by: str | None
    revoked_at: str | None

    @classmethod
    def of(cls, rule: PolicyRule) -> RuleShape:
        return cls(
            rule_id=rule.rule_id,
            agent=rule.agent,
            tool=rule.tool,
            verdict=rule.verdict.value,
            once=rule.once,
            active=rule.active,
            reason=rule.reason,
            approval_id=rule.approval_id,
            created_by=rule.created_by,
            created_at=rfc3339(rule.created_at),
            used_by=rule.used_by,
            used_at=rfc3339_or_none(rule.used_at),
            revoked_by=rule.revoked_by,
            revoked_at=rfc3339_or_none(rule.revoked_at),
        )


class RulePage(Shape):
    """Newest first. `next_cursor` continues the list, null at its end."""

    rules: list[RuleShape]
    next_cursor: str | None


class EffectReconcile(Body):
    """How an uncertain call turned out. `result` is what it returned, if it was applied."""

    resolution: Literal["applied", "not_applied", "compensated"]
    result: ResultText | None = None
    reason: Reason | None = None
    evidence: Annotated[Reason | None, Field(description="How this is known: a link, a command, a commit.")] = None
    actor: Person | None = None

    def command(self, door: str) -> Reconciliation:
        """What the service gets."""
        by = named(door, self.actor)
        return Reconciliation(Resolution(self.resolution), by, self.reason, self.evidence, self.result)
