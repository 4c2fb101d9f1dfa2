"""Effects: calls that leave the process, and what may run twice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from milepost.domain.content import Content


class EffectClass(StrEnum):
    """What may happen when an effect is found dispatched without an outcome (the worker died)."""

    PURE = "pure"
    OBSERVE = "observe"
    IDEMPOTENT = "idempotent"
    KEYED = "keyed"
    MODEL = "model"
    ATTACHABLE = "attachable"
    INTERNAL_STATE = "internal_state"
    AT_MOST_ONCE = "at_most_once"


class EffectState(StrEnum):
    PLANNED = "planned"
    AWAITING_APPROVAL = "awaiting_approval"
    DISPATCHED = "dispatched"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNCERTAIN = "uncertain"
    CANCELLED = "cancelled"
    DENIED = "denied"


class Resolution(StrEnum):
    """How an uncertain effect turned out. `LATE` is what the attempt that was taken for lost said itself."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    COMPENSATED = "compensated"
    LATE = "late"


EFFECT_TRANSITIONS: dict[EffectState, frozenset[EffectState]] = {
    EffectState.PLANNED: frozenset(
        {EffectState.AWAITING_APPROVAL, EffectState.DISPATCHED, EffectState.CANCELLED, EffectState.DENIED}
    ),
    EffectState.AWAITING_APPROVAL: frozenset({EffectState.DISPATCHED, EffectState.CANCELLED, EffectState.DENIED}),
    # DISPATCHED -> DISPATCHED is a new attempt with a higher fence; CANCELLED is a stop whose end was observed.
    EffectState.DISPATCHED: frozenset(
        {
            EffectState.DISPATCHED,
            EffectState.SUCCEEDED,
            EffectState.FAILED,
            EffectState.UNCERTAIN,
            EffectState.CANCELLED,
        }
    ),
    # A late success, or a person's reconciliation, settles an uncertain effect.
    EffectState.UNCERTAIN: frozenset({EffectState.SUCCEEDED, EffectState.FAILED}),
    EffectState.SUCCEEDED: frozenset(),
    EffectState.FAILED: frozenset(),
    EffectState.CANCELLED: frozenset(),
    EffectState.DENIED: frozenset(),
}

SETTLED_EFFECT_STATES = frozenset(
    {EffectState.SUCCEEDED, EffectState.FAILED, EffectState.CANCELLED, EffectState.DENIED}
)

RERUN_CLASSES = frozenset(
    {EffectClass.PURE, EffectClass.OBSERVE, EffectClass.IDEMPOTENT, EffectClass.KEYED, EffectClass.MODEL}
)
"""Found dispatched: run again (keyed ones with the same key, model calls charged for both attempts)."""


@dataclass(frozen=True, slots=True)
class EffectSpec:
    """A logical call, before it is dispatched. See `engine.effects.effect_id` for the identity."""

    effect_id: str
    idempotency_key: str
    session_id: str
    turn_id: str
    generation: int
    agent: str
    position: str
    operation: str
    effect_class: EffectClass
    input_digest: str
    call_id: str | None = None
    arguments: Content | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """The row of a logical call. `attempt` is the fence: the number of the dispatch that owns the outcome."""

    spec: EffectSpec
    state: EffectState
    attempt: int
    created_at: int
    dispatched_at: int | None
    finished_at: int | None
    worker: str | None
    result: bytes | None
    error_code: str | None
    error_message: str | None
