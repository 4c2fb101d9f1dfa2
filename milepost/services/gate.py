"""The gate in front of a call: policy rules and approvals. Runs inside the caller's transaction."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.domain.approvals import PREVIEW_CHARACTERS, Approval, ApprovalState, PolicyRule, Verdict
from milepost.domain.effects import Effect, EffectSpec, EffectState
from milepost.domain.events import ApprovalRequested, ApprovalResolved, StreamKind
from milepost.domain.tools import SHELL, SHELL_TOOLS
from milepost.domain.tools import Approval as ApprovalPolicy
from milepost.engine.policy import approval_id, deciding
from milepost.ports.ledger import LedgerTx, NewEvent

DENIED_BY_RULE = "denied_by_rule"
REJECTED = "approval_rejected"
EXPIRED = "approval_expired"
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Gate:
    """What deciding about a call needs beside its effect. `arguments` is the exact text, `seconds` how long to ask."""

    policy: ApprovalPolicy
    tool: str
    round: int
    index: int
    arguments: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Held:
    """A call that may not run: its effect waits for `approval`, or is denied (approval None)."""

    effect: Effect
    approval: Approval | None = None


def pass_gate(tx: LedgerTx, spec: EffectSpec, gate: Gate, existing: Effect | None, at: int) -> Held | None:
    """Decide about a call that was never dispatched; None lets it pass.

    A question that was asked is what decides: its answer holds for this call, whatever rules say since. Otherwise the
    strongest policy rule decides, else the agent's policy, which may ask a person.
    """
    if existing is not None and existing.state is EffectState.AWAITING_APPROVAL:
        # Ends of turns and answers take the Session's lock first as well; the question is read after it.
        tx.turns.lock_session(spec.session_id)
        return _asked(tx, spec, gate, at)
    rule = _rule(tx, spec, gate, at)
    if rule is not None:
        return None if rule.verdict is Verdict.ALLOW else Held(_deny(tx, spec, gate, rule, at))
    if gate.policy is ApprovalPolicy.ALLOW:
        return None
    tx.turns.lock_session(spec.session_id)
    return _ask(tx, spec, gate, at)


def resolved_event(approval: Approval, rule_id: str | None = None) -> NewEvent:
    """The `approval.resolved` event of an approval that has its end."""
    event = ApprovalResolved(
        turn_id=approval.turn_id,
        effect_id=approval.effect_id,
        approval_id=approval.approval_id,
        state=approval.state,
        actor=approval.actor or "",
        reason=approval.reason,
        rule_id=rule_id,
    )
    return NewEvent(f"{approval.approval_id}/resolved", event, approval.turn_id)


def rejection_text(approval: Approval) -> str:
    """What the model is told of a rejected call."""
    why = f" Reason: {approval.reason}" if approval.reason else ""
    return f"{approval.tool} was not run: a person rejected this call.{why}"


def _rule(tx: LedgerTx, spec: EffectSpec, gate: Gate, at: int) -> PolicyRule | None:
    """The rule that decides. One that counts once is used up, unless another call was faster."""
    rules = tx.rules.matching(spec.agent, gate.tool, spec.effect_id)
    if gate.tool in SHELL_TOOLS:
        shell = tx.rules.matching(spec.agent, SHELL, spec.effect_id)
        rules += [rule for rule in shell if rule.tool == SHELL and rule.verdict is Verdict.DENY]
    while (rule := deciding(rules)) is not None:
        if not rule.once or tx.rules.use(rule.rule_id, spec.effect_id, at):
            return rule
        rules.remove(rule)
    return None


def _deny(tx: LedgerTx, spec: EffectSpec, gate: Gate, rule: PolicyRule, at: int) -> Effect:
    why = f" Reason: {rule.reason}" if rule.reason else ""
    text = f"{gate.tool} was not run: the policy rule {rule.rule_id} denies it.{why}"
    return tx.effects.deny(spec, at, DENIED_BY_RULE, text)


def _ask(tx: LedgerTx, spec: EffectSpec, gate: Gate, at: int) -> Held:
    effect = tx.effects.hold(spec, at)
    approval = Approval(
        approval_id=approval_id(spec.turn_id, spec.generation, spec.agent, spec.position, gate.tool, spec.input_digest),
        effect_id=spec.effect_id,
        session_id=spec.session_id,
        turn_id=spec.turn_id,
        agent=spec.agent,
        tool=gate.tool,
        call_id=spec.call_id or "",
        input_digest=spec.input_digest,
        preview=gate.arguments[:PREVIEW_CHARACTERS],
        truncated=len(gate.arguments) > PREVIEW_CHARACTERS,
        state=ApprovalState.PENDING,
        requested_at=at,
        expires_at=at + gate.seconds * _US,
    )
    tx.approvals.add(approval)
    requested = ApprovalRequested(
        turn_id=approval.turn_id,
        agent=approval.agent,
        effect_id=approval.effect_id,
        approval_id=approval.approval_id,
        round=gate.round,
        index=gate.index,
        call_id=approval.call_id,
        tool=approval.tool,
        input_digest=approval.input_digest,
        arguments=approval.preview,
        truncated=approval.truncated,
        expires_at=approval.expires_at,
    )
    event = NewEvent(f"{approval.approval_id}/requested", requested, spec.turn_id)
    tx.events.append(spec.session_id, StreamKind.SESSION, [event], at)
    tx.notify(spec.session_id)
    return Held(effect, approval)


def _asked(tx: LedgerTx, spec: EffectSpec, gate: Gate, at: int) -> Held | None:
    approval = tx.approvals.of_effect(spec.effect_id)
    if approval is None:
        return _ask(tx, spec, gate, at)
    if approval.state is ApprovalState.PENDING and approval.state_at(at) is ApprovalState.EXPIRED:
        expired = tx.approvals.resolve(approval.approval_id, ApprovalState.EXPIRED, at, "", "Nobody answered in time.")
        approval = expired or tx.approvals.get(approval.approval_id)
        if expired is not None:
            tx.events.append(spec.session_id, StreamKind.SESSION, [resolved_event(expired)], at)
            tx.notify(spec.session_id)
    match approval.state:
        case ApprovalState.PENDING:
            effect = tx.effects.get(spec.effect_id)
            return None if effect is None else Held(effect, approval)
        case ApprovalState.APPROVED:
            return None
        case ApprovalState.EXPIRED:
            text = f"{gate.tool} was not run: nobody approved this call in time."
            return Held(_settle_denied(tx, spec, at, EXPIRED, text))
        case _:
            return Held(_settle_denied(tx, spec, at, REJECTED, rejection_text(approval)))


def _settle_denied(tx: LedgerTx, spec: EffectSpec, at: int, code: str, text: str) -> Effect:
    return tx.effects.settle(spec.effect_id, 0, EffectState.DENIED, at, None, code, text)
