"""Identity of effects, and the decision on re-entry."""

from __future__ import annotations

import hashlib
from enum import StrEnum

from milepost.domain.effects import RERUN_CLASSES, EffectClass, EffectState


def _digest(*parts: str) -> str:
    # Length prefixes keep ("ab", "c") and ("a", "bc") apart.
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()


def effect_id(owner: str, generation: int, agent: str, position: str, operation: str, input_digest: str) -> str:
    """One id per logical call of an execution.

    `owner` is the turn or run id, `position` the logical place of the call (round and index, map or loop index).
    Activity attempts are not part of it: a retry, a worker crash or a resume finds the same row.
    """
    return _digest("effect", owner, str(generation), agent, position, operation, input_digest)


def idempotency_key(owner: str, agent: str, position: str, operation: str, input_digest: str) -> str:
    """The key given to remote peers: the effect id without the generation, so it holds across repair and resume."""
    return _digest("idempotency", owner, agent, position, operation, input_digest)


class Entry(StrEnum):
    """What an activity does when it comes to an effect."""

    DISPATCH = "dispatch"
    ATTACH = "attach"
    RETURN_RECORDED = "return_recorded"
    BECOME_UNCERTAIN = "become_uncertain"
    WAIT_FOR_PERSON = "wait_for_person"


def on_entry(state: EffectState | None, effect_class: EffectClass) -> Entry:
    """Decide by the recorded state (None: no row yet) and the class. See docs/architecture.md, "Effects"."""
    match state:
        case None | EffectState.PLANNED:
            return Entry.DISPATCH
        case EffectState.AWAITING_APPROVAL:
            return Entry.WAIT_FOR_PERSON
        case EffectState.DISPATCHED:
            if effect_class in RERUN_CLASSES or effect_class is EffectClass.INTERNAL_STATE:
                return Entry.DISPATCH
            if effect_class is EffectClass.ATTACHABLE:
                return Entry.ATTACH
            return Entry.BECOME_UNCERTAIN
        case _:
            return Entry.RETURN_RECORDED
