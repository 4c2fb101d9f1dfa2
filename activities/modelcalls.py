"""One model call on its way: what it is, and what is recorded of its tries, whatever it is for."""

from __future__ import annotations

from dataclasses import dataclass

from activities.charges import Expected
from activities.conversation import TurnContext
from activities.routes import WORKER_LOST, Routing, retried_key
from milepost.contracts.activities import CallModelParams, CallModelResult, ModelOutcome, boundary_text
from milepost.domain.effects import EffectSpec, EffectState
from milepost.domain.errors import BudgetExceeded, MilepostError, ModelError
from milepost.domain.events import ModelFailed, ModelRetried
from milepost.domain.prices import priced
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.ledger.codec import encode
from milepost.ports.ledger import NewEvent
from milepost.ports.models import ModelRequest
from milepost.services.budgeting import Ask
from milepost.services.effects import Settlement
from milepost.services.finishing import bounded_error


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call that may be made. `notes` are facts about it that its record shall say."""

    params: CallModelParams
    context: TurnContext
    spec: EffectSpec
    request: ModelRequest
    routing: Routing
    expected: Expected
    ask: Ask
    notes: tuple[str, ...] = ()


def priced_usage(call: ModelCall, usage: Usage) -> Usage:
    """With its cost, by the prices of this try's route that were recorded at the turn's start."""
    return priced(usage, call.context.started.prices_of(call.routing.index))


def charge_of(call: ModelCall, error: MilepostError) -> Usage:
    """What a failed attempt is known to have used and cost."""
    used = UNKNOWN_USAGE if isinstance(error, ModelError) and error.may_have_cost else Usage()
    return priced_usage(call, used)


def failed_event(call: ModelCall, attempt: int, code: str, message: str, usage: Usage) -> NewEvent:
    """The `model.failed` event of a call that ends without an answer."""
    failed = ModelFailed(
        turn_id=call.params.turn_id,
        agent=call.params.agent,
        effect_id=call.spec.effect_id,
        attempt=attempt,
        error_code=code,
        error_message=bounded_error(message),
        usage=usage,
        route=call.routing.index,
    )
    return NewEvent(f"{call.spec.effect_id}/failed", failed, call.params.turn_id)


def refused(call: ModelCall, attempt: int, error: BudgetExceeded) -> tuple[Settlement, list[NewEvent]]:
    """How a call ends that no budget allows: nothing was sent."""
    result = CallModelResult(
        ModelOutcome.FAILED, call.spec.effect_id, error_code=error.code, error=boundary_text(str(error))
    )
    failed = failed_event(call, attempt, error.code, str(error), Usage())
    return Settlement(EffectState.FAILED, encode(result)), [failed]


def retried_event(call: ModelCall, attempt: int, code: str, message: str, usage: Usage, following: Routing) -> NewEvent:
    """The `model.retried` event of an attempt that is made again by the `following` routing."""
    failure = following.failures[-1] if following is not call.routing else None
    event = ModelRetried(
        turn_id=call.params.turn_id,
        agent=call.params.agent,
        effect_id=call.spec.effect_id,
        attempt=attempt,
        error_code=code,
        error_message=bounded_error(message),
        usage=usage,
        retry_after=None if failure is None else failure.retry_after,
        route=call.routing.index,
        next_route=following.index,
        final=failure is not None and failure.final,
    )
    return NewEvent(retried_key(call.spec.effect_id, attempt), event, call.params.turn_id)


def lost_attempt(call: ModelCall, attempt: int) -> list[NewEvent]:
    """What is recorded with a dispatch of the attempt before it, if nobody ended that."""
    # Same key as the event of an attempt that failed and could say so: only a silent loss adds one here.
    if attempt == 1:
        return []
    # Nothing was recorded since: the lost attempt took the route that this one takes.
    text = "The worker was lost during the call."
    return [retried_event(call, attempt - 1, WORKER_LOST, text, priced_usage(call, UNKNOWN_USAGE), call.routing)]


def following_try(call: ModelCall, error: MilepostError, *, last: bool) -> Routing | None:
    """How a failed call goes on; None if it does not. `last`: no further attempt will be made."""
    following = None if last else call.routing.failed(error)
    return following if isinstance(error, ModelError) or error.other_route_may_help else None
