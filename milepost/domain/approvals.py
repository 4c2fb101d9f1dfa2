"""Approvals: a person's answer to one exact call. Policy rules: answers that are remembered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_APPROVAL_SECONDS = 3600
MAX_APPROVAL_SECONDS = 7 * 24 * 3600
PREVIEW_CHARACTERS = 2_000


class ApprovalState(StrEnum):
    """`CLOSED`: the turn ended before there was an answer."""

    PENDING = "pending"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to a person about one effect. Times are microseconds since the epoch, UTC.

    `input_digest` is SHA-256 of the exact arguments; `preview` is at most 2,000 characters of them.
    """

    approval_id: str
    effect_id: str
    session_id: str
    turn_id: str
    agent: str
    tool: str
    call_id: str
    input_digest: str
    preview: str
    truncated: bool
    state: ApprovalState
    requested_at: int
    expires_at: int
    resolved_at: int | None = None
    actor: str | None = None
    reason: str | None = None

    def state_at(self, now: int) -> ApprovalState:
        """The state; a question that nobody answered in time counts as expired before that is recorded."""
        if self.state is ApprovalState.PENDING and now >= self.expires_at:
            return ApprovalState.EXPIRED
        return self.state


class Verdict(StrEnum):
    """What a policy rule says of a call."""

    ALLOW = "allow"
    DENY = "deny"


class RuleScope(StrEnum):
    """What a remembered answer covers. `ONCE`: this call and no other, so no rule is made of an answer."""

    ONCE = "once"
    AGENT_TOOL = "agent_tool"
    ANY_AGENT_TOOL = "any_agent_tool"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """A decision about calls to come. `agent` or `tool` None stands for any.

    A rule that counts `once` decides one call and is used up; `used_by` is that call's effect. `approval_id` is the
    approval whose answer it was made with.
    """

    rule_id: str
    agent: str | None
    tool: str | None
    verdict: Verdict
    once: bool
    created_at: int
    created_by: str
    reason: str | None = None
    approval_id: str | None = None
    used_at: int | None = None
    used_by: str | None = None
    revoked_at: int | None = None
    revoked_by: str | None = None

    @property
    def active(self) -> bool:
        """Whether it can still decide a call it has not decided before."""
        return self.revoked_at is None and self.used_by is None
