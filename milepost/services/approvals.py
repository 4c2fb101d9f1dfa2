"""Answering approvals, and the policy rules that remember answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from milepost.domain.approvals import Approval, ApprovalState, PolicyRule, RuleScope, Verdict
from milepost.domain.effects import EffectState
from milepost.domain.errors import ApprovalExpired, ApprovalSettled, InvalidInput, TurnNotRunning
from milepost.domain.events import StreamKind
from milepost.ports.ledger import Ledger, LedgerTx, OutboxKind
from milepost.ports.notifier import OUTBOX_TOPIC
from milepost.ports.system import Clock, IdSource
from milepost.services.gate import REJECTED, rejection_text, resolved_event
from milepost.services.sessions import MAX_PAGE


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer. `remember` makes a rule of it for calls to come."""

    approve: bool
    actor: str
    reason: str | None = None
    remember: RuleScope = RuleScope.ONCE


@dataclass(frozen=True, slots=True)
class NewRule:
    """A rule a person makes without being asked. `agent` or `tool` None stands for any."""

    verdict: Verdict
    actor: str
    agent: str | None = None
    tool: str | None = None
    once: bool = False
    reason: str | None = None


class ApprovalService:
    """Use cases of approvals. An answer is one transaction; the turn's workflow hears of it through the outbox."""

    def __init__(self, ledger: Ledger, clock: Clock, ids: IdSource) -> None:
        self._ledger = ledger
        self._clock = clock
        self._ids = ids

    async def page(
        self,
        *,
        session_id: str | None = None,
        state: ApprovalState | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[Approval]:
        """Pending first, then newest first; a pending one whose time is over is shown as expired.

        Raises SessionNotFound, ApprovalNotFound (for `after`).
        """
        now = self._clock.now()
        bounded = max(1, min(limit, MAX_PAGE))

        def body(tx: LedgerTx) -> list[Approval]:
            if session_id is not None:
                tx.sessions.get(session_id)
            return tx.approvals.page(session_id=session_id, state=state, after=after, limit=bounded)

        found = await self._ledger.read(body)
        return [replace(approval, state=approval.state_at(now)) for approval in found]

    async def get(self, approval_id: str) -> Approval:
        """Raises ApprovalNotFound."""
        now = self._clock.now()
        found = await self._ledger.read(lambda tx: tx.approvals.get(approval_id))
        return replace(found, state=found.state_at(now))

    async def answer(self, approval_id: str, answer: Answer) -> tuple[Approval, PolicyRule | None]:
        """Record the one answer; return the approval and the rule that remembers the answer, if one was asked for.

        Approved, exactly this call runs, once. Rejected, the model is told so and the turn goes on.

        Raises:
            ApprovalNotFound, TurnNotRunning (the turn has ended), ApprovalSettled, ApprovalExpired.
        """
        now = self._clock.now()
        session_id = (await self.get(approval_id)).session_id

        def body(tx: LedgerTx) -> tuple[Approval, PolicyRule | None]:
            tx.turns.lock_session(session_id)
            approval = tx.approvals.get(approval_id)
            _require_open(tx, approval, now)
            state = ApprovalState.APPROVED if answer.approve else ApprovalState.REJECTED
            resolved = tx.approvals.resolve(approval_id, state, now, answer.actor, answer.reason)
            if resolved is None:
                raise _settled(tx.approvals.get(approval_id))
            if not answer.approve:
                text = rejection_text(resolved)
                tx.effects.settle(resolved.effect_id, 0, EffectState.DENIED, now, None, REJECTED, text)
            rule = self._remember(tx, resolved, answer, now)
            event = resolved_event(resolved, None if rule is None else rule.rule_id)
            tx.events.append(session_id, StreamKind.SESSION, [event], now)
            tx.outbox.add(OutboxKind.ANSWER_APPROVAL, approval_id, now)
            tx.notify(session_id)
            tx.notify(OUTBOX_TOPIC)
            return resolved, rule

        return await self._ledger.write(body)

    def _remember(self, tx: LedgerTx, approval: Approval, answer: Answer, now: int) -> PolicyRule | None:
        if answer.remember is RuleScope.ONCE:
            return None
        rule = PolicyRule(
            rule_id=self._ids.new("rul"),
            agent=approval.agent if answer.remember is RuleScope.AGENT_TOOL else None,
            tool=approval.tool,
            verdict=Verdict.ALLOW if answer.approve else Verdict.DENY,
            once=False,
            created_at=now,
            created_by=answer.actor,
            reason=answer.reason,
            approval_id=approval.approval_id,
        )
        tx.rules.add(rule)
        return rule

    async def add_rule(self, new: NewRule) -> PolicyRule:
        """Raises InvalidInput for a rule that would allow every tool to every agent."""
        if new.agent is None and new.tool is None and new.verdict is Verdict.ALLOW:
            raise InvalidInput(
                "A rule that allows every tool to every agent is not accepted.",
                field="tool",
                fix="Name an agent or a tool, or set agents.ID.approvals in the configuration.",
            )
        rule = PolicyRule(
            rule_id=self._ids.new("rul"),
            agent=new.agent,
            tool=new.tool,
            verdict=new.verdict,
            once=new.once,
            created_at=self._clock.now(),
            created_by=new.actor,
            reason=new.reason,
        )
        await self._ledger.write(lambda tx: tx.rules.add(rule))
        return rule

    async def rules(self, *, active: bool = True, after: str | None = None, limit: int = 50) -> list[PolicyRule]:
        """Newest first; `active` leaves out revoked and used ones. Raises PolicyRuleNotFound for `after`."""
        bounded = max(1, min(limit, MAX_PAGE))
        return await self._ledger.read(lambda tx: tx.rules.page(active=active, after=after, limit=bounded))

    async def revoke_rule(self, rule_id: str, actor: str) -> PolicyRule:
        """From now on the rule decides no call; revoking again changes nothing. Raises PolicyRuleNotFound."""
        now = self._clock.now()
        return await self._ledger.write(lambda tx: tx.rules.revoke(rule_id, now, actor))


def _require_open(tx: LedgerTx, approval: Approval, now: int) -> None:
    turn = tx.turns.get(approval.turn_id)
    if turn.state.terminal:
        raise TurnNotRunning(f"Turn {turn.turn_id} is not running; it is {turn.state}. Nothing was changed.")
    if turn.stop_requested_at is not None:
        raise TurnNotRunning(f"Turn {turn.turn_id} was asked to stop. Nothing was changed.")
    if approval.state is not ApprovalState.PENDING:
        raise _settled(approval)
    if approval.state_at(now) is ApprovalState.EXPIRED:
        raise ApprovalExpired(
            f"Approval {approval.approval_id} was open until its time was over; the call is not run.",
            fix="The agent may ask again.",
        )


def _settled(approval: Approval) -> ApprovalSettled:
    by = f" by {approval.actor}" if approval.actor else ""
    return ApprovalSettled(f"Approval {approval.approval_id} is {approval.state}{by} already; nothing was changed.")
