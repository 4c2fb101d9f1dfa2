"""Reconciling effects whose outcome is unknown: a person says how they turned out."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.domain.effects import Effect, EffectState, Resolution
from milepost.domain.errors import EffectNotFound, EffectNotUncertain, Fenced, InvalidInput
from milepost.domain.events import EffectReconciled, StreamKind
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.system import Clock
from milepost.services.contents import Contents
from milepost.services.finishing import bounded_error

MAX_RESULT_CHARACTERS = 1024 * 1024
_TEXTS = {
    Resolution.NOT_APPLIED: "Reconciled: the call took no effect.",
    Resolution.COMPENSATED: "Reconciled: the call took effect and was undone.",
}


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What a person found out. `result` is the text of a call that was applied; `evidence` says how it is known."""

    resolution: Resolution
    actor: str
    reason: str | None = None
    evidence: str | None = None
    result: str | None = None


class OutcomeService:
    """Settles uncertain effects, also after their turn has ended."""

    def __init__(self, ledger: Ledger, contents: Contents, clock: Clock) -> None:
        self._ledger = ledger
        self._contents = contents
        self._clock = clock

    async def reconcile(self, effect_id: str, found: Reconciliation) -> Effect:
        """Settle the effect and append `effect.reconciled`; the turn's state does not change.

        `applied` makes it succeeded; `not_applied` and `compensated` make it failed, with the resolution as its code.

        Raises:
            EffectNotFound, EffectNotUncertain, InvalidInput (a result for what was not applied).
        """
        if found.result is not None and found.resolution is not Resolution.APPLIED:
            raise InvalidInput("Only a call that was applied has a result.", field="result")
        if found.resolution is Resolution.LATE:
            raise InvalidInput("A late outcome is recorded by a worker, not by a person.", field="resolution")
        result = None if found.result is None else await self._contents.store(found.result)
        now = self._clock.now()

        def body(tx: LedgerTx) -> Effect:
            effect = tx.effects.get(effect_id)
            if effect is None:
                raise EffectNotFound(f"There is no effect {effect_id}.", field="effect_id")
            if effect.state is not EffectState.UNCERTAIN:
                raise _known(effect_id)
            applied = found.resolution is Resolution.APPLIED
            state = EffectState.SUCCEEDED if applied else EffectState.FAILED
            code = None if applied else found.resolution.value
            text = None if applied else bounded_error(_TEXTS[found.resolution])
            try:
                settled = tx.effects.settle(effect_id, effect.attempt, state, now, None, code, text)
            except Fenced as error:
                raise _known(effect_id) from error
            event = EffectReconciled(
                turn_id=effect.spec.turn_id,
                effect_id=effect_id,
                resolution=found.resolution.value,
                actor=found.actor,
                reason=found.reason,
                evidence=found.evidence,
                result=result,
            )
            tx.events.append(effect.spec.session_id, StreamKind.SESSION, [reconciled_event(event)], now)
            tx.notify(effect.spec.session_id)
            return settled

        return await self._ledger.write(body)


def _known(effect_id: str) -> EffectNotUncertain:
    return EffectNotUncertain(
        f"The outcome of effect {effect_id} is not uncertain; nothing was changed.",
        fix="List uncertain effects: milepost effects list SESSION --state uncertain",
    )


def reconciled_event(event: EffectReconciled) -> NewEvent:
    """The one reconciliation of an effect."""
    return NewEvent(reconciled_key(event.effect_id), event, event.turn_id)


def reconciled_key(effect_id: str) -> str:
    """Event key of an effect's reconciliation."""
    return f"{effect_id}/reconciled"
