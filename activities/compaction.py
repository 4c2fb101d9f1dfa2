"""Compacting a conversation before a model call: old results are shortened, older turns summarized by a model call.

The summary is an effect of its own. Its outcome and the `context.compacted` event are one transaction, so whoever comes
to the model call afterwards, after a crash too, finds the conversation compacted.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum

from temporalio import activity

from activities.admission import enter_in_budget
from activities.boundary import retry_error
from activities.charges import ask_of, expected, in_time
from activities.compacting import Draft, compactions_of, draft_of, was_compacted_for_refusal
from activities.guard import Stopped, cancel_requested, guarded
from activities.modelcalls import (
    ModelCall,
    charge_of,
    failed_event,
    following_try,
    priced_usage,
    refused,
    retried_event,
)
from activities.routes import routing_of
from milepost.contracts.activities import CALL_MODEL, CallModelResult, ModelOutcome
from milepost.domain.compaction import MAX_COMPACTIONS
from milepost.domain.content import Content
from milepost.domain.effects import EffectState
from milepost.domain.errors import BudgetExceeded, MilepostError, ModelFault, ModelIncomplete
from milepost.domain.events import ContextCompacted
from milepost.domain.messages import FinishReason, Sampling, UserMessage
from milepost.domain.usage import UNKNOWN_USAGE
from milepost.engine.compaction import SHRINK_SHARE, room_after_refusal, room_of, summary_tokens
from milepost.engine.effects import Entry, effect_id, idempotency_key
from milepost.engine.tokens import text_tokens
from milepost.ledger.codec import encode
from milepost.ledger.summaries import SYSTEM_PROMPT, summary_request
from milepost.ports.ledger import Ledger, NewEvent
from milepost.ports.models import SUMMARY, ModelCompleted, ModelGateway, ModelRequest, TokenCounters
from milepost.services.budgeting import Answered
from milepost.services.contents import Contents
from milepost.services.effects import EffectJournal, Settlement
from milepost.services.finishing import compacted_key, summary_position
from milepost.services.stops import StopSignal

STOPPED_TEXT = "The turn was stopped while the conversation was being summarized."
CUT_TEXT = "[The summary was cut off at its length limit.]"


class Outcome(StrEnum):
    """`NONE`: the call may be made as it is. `COMPACTED`: its conversation is another one now. `STOPPED`: the turn."""

    NONE = "none"
    COMPACTED = "compacted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Fit:
    """What was done; `note` says why a request that is long was left so."""

    outcome: Outcome
    note: str | None = None


class Compactor:
    """Brings the conversation of a model call under the threshold of its window."""

    def __init__(
        self,
        ledger: Ledger,
        contents: Contents,
        journal: EffectJournal,
        gateway: ModelGateway,
        counters: TokenCounters,
    ) -> None:
        self._ledger = ledger
        self._contents = contents
        self._journal = journal
        self._gateway = gateway
        self._counters = counters

    async def fit(self, call: ModelCall, stop: StopSignal) -> Fit:
        """Compact if the request is too long for its window and it was not dispatched before.

        Raises ApplicationError to have the summary tried again, TurnClaimed, StorageUnavailable.
        """
        started = call.context.started
        window = started.window_of(call.routing.index)
        if window is None or not started.context.compact:
            return Fit(Outcome.NONE)
        room = room_of(window, call.expected.output if call.expected.bounded else 0, started.context.threshold)
        if call.expected.input <= room:
            return Fit(Outcome.NONE)
        if await self._ledger.read(lambda tx: tx.effects.get(call.spec.effect_id)) is not None:
            return Fit(Outcome.NONE)
        size = f"The request has about {call.expected.input:,} of {window:,} tokens"
        done = compactions_of(call)
        if len(done) >= MAX_COMPACTIONS:
            return Fit(Outcome.NONE, f"{size} after {MAX_COMPACTIONS} compactions, and there are no more in a turn.")
        if done and done[-1].error:
            return Fit(Outcome.NONE, f"{size}, and its compaction failed: {done[-1].error}")
        draft = draft_of(call, window, room, len(done) + 1)
        if draft is None:
            why = f"no compaction would shrink it by {SHRINK_SHARE:.0%}: the newest parts are long."
            return Fit(Outcome.NONE, f"{size}, and {why}")
        return await self._carry_out(call, draft, room, stop)

    async def after_refusal(self, call: ModelCall, stop: StopSignal) -> Fit:
        """Compact since the provider refused the request as too long: once for a call, whatever the estimate says.

        Raises ApplicationError to have the summary tried again, TurnClaimed, StorageUnavailable.
        """
        started, done, tokens = call.context.started, compactions_of(call), call.expected.input
        if not started.context.compact or len(done) >= MAX_COMPACTIONS or was_compacted_for_refusal(call):
            return Fit(Outcome.NONE)
        room = room_after_refusal(tokens, started.window_of(call.routing.index))
        draft = draft_of(call, tokens, room, len(done) + 1)
        return Fit(Outcome.NONE) if draft is None else await self._carry_out(call, draft.refused, room, stop)

    async def _carry_out(self, call: ModelCall, draft: Draft, room: float, stop: StopSignal) -> Fit:
        if draft.covered:
            return await self._summarized(call, draft, room, stop)
        await self._record(call, [self._event(call, draft.event)])
        return Fit(Outcome.COMPACTED)

    def _event(self, call: ModelCall, event: ContextCompacted) -> NewEvent:
        return NewEvent(compacted_key(event.turn_id, event.agent, event.number), event, call.params.turn_id)

    async def _record(self, call: ModelCall, events: list[NewEvent]) -> None:
        await self._journal.record(call.spec.session_id, call.spec.turn_id, call.params.claim, events)

    async def _summarized(self, call: ModelCall, draft: Draft, room: float, stop: StopSignal) -> Fit:
        summary = await self._call(call, draft, room)
        undone = draft.without_summary
        entered = await enter_in_budget(
            self._journal, summary, lambda attempt, error: self._refused(summary, undone, attempt, error), stop
        )
        effect = entered.effect
        if effect is None or entered.stop_requested or effect.state is EffectState.CANCELLED:
            return Fit(Outcome.STOPPED)
        if entered.entry is not Entry.DISPATCH:
            return Fit(Outcome.COMPACTED)
        attempt = effect.attempt
        try:
            if await stop.heard():
                raise Stopped
            work = in_time(
                self._consume(replace(summary.request, attempt=attempt)), call.context.started, call.ask.elapsed
            )
            completed = await guarded(work, stop)
        except Stopped:
            await asyncio.shield(self._stopped(summary, attempt))
            return Fit(Outcome.STOPPED)
        except MilepostError as error:
            return await self._failed(summary, undone, attempt, error)
        except Exception as error:
            fault = ModelFault(f"{type(error).__name__}: {error}")
            fault.__cause__ = error
            return await self._failed(summary, undone, attempt, fault)
        await asyncio.shield(self._answered(summary, draft, attempt, completed))
        if cancel_requested():
            raise asyncio.CancelledError
        return Fit(Outcome.COMPACTED)

    async def _call(self, call: ModelCall, draft: Draft, room: float) -> ModelCall:
        """The summary's own call. Its identity is that of the request that is too long."""
        params, started = call.params, call.context.started
        position = summary_position(params.round, draft.event.number)
        operation = f"summarize:{started.provider}/{started.model}"
        digest, generation = call.spec.input_digest, call.spec.generation
        spec = replace(
            call.spec,
            effect_id=effect_id(params.turn_id, generation, params.agent, position, operation, digest),
            idempotency_key=idempotency_key(params.turn_id, params.agent, position, operation, digest),
            position=position,
            operation=operation,
        )
        routing = await routing_of(self._ledger, call.context, params.session_id, spec.effect_id)
        found = call.context.compacted
        earlier = "" if found is None or found.event.summary is None else await self._contents.load(found.event.summary)
        answer = summary_tokens(room)
        factor = max(call.expected.factor, 0.1)
        text = await asyncio.to_thread(
            summary_request, draft.covered, earlier, tokens=room * 0.9 / factor, answer=math.floor(answer / factor)
        )
        sampling = started.sampling
        request = replace(
            call.request,
            provider=routing.route.provider,
            model=routing.route.model,
            system_prompt=SYSTEM_PROMPT,
            messages=(UserMessage(Content(text)),),
            tools=(),
            # Twice: some models think within this limit.
            sampling=Sampling(sampling.temperature, sampling.top_p, max_tokens=2 * answer),
            call_number=draft.event.number,
            idempotency_key=spec.idempotency_key,
            cache_key=hashlib.sha256(f"{call.request.cache_key}/{SUMMARY}".encode()).hexdigest()[:32],
            purpose=SUMMARY,
        )
        estimate = await expected(self._ledger, self._counters, started, request)
        ask = ask_of(started, request, routing.index, estimate, call.ask.elapsed)
        return ModelCall(params, call.context, spec, request, routing, estimate, ask)

    async def _consume(self, request: ModelRequest) -> ModelCompleted:
        completed: ModelCompleted | None = None
        async with aclosing(self._gateway.stream(request)) as stream:
            async for item in stream:
                completed = item if isinstance(item, ModelCompleted) else completed
        if completed is None:
            raise ModelIncomplete("The provider's stream ended without an answer.")
        return completed

    async def _answered(self, call: ModelCall, draft: Draft, attempt: int, completed: ModelCompleted) -> None:
        usage = priced_usage(call, completed.usage)
        text = completed.message.text.strip()
        if text and completed.finish is FinishReason.LENGTH:
            text = f"{text}\n{CUT_TEXT}"
        event = await self._judged(draft, text, call.expected.factor)
        event = replace(
            event,
            effect_id=call.spec.effect_id,
            attempt=attempt,
            provider=completed.provider,
            model=completed.model,
            route=call.routing.index,
            usage=usage,
        )
        result = CallModelResult(ModelOutcome.ANSWERED, call.spec.effect_id, completed.finish)
        known = usage.input_tokens + usage.cached_input_tokens if usage.complete else None
        await self._journal.settle(
            call.spec,
            attempt,
            Settlement(EffectState.SUCCEEDED, encode(result)),
            [self._event(call, event)],
            Answered(call.ask, 0, known),
        )

    async def _judged(self, draft: Draft, text: str, factor: float) -> ContextCompacted:
        """The compaction with its summary, or without it if it is of no use."""
        after = math.ceil(draft.without + text_tokens(text) * factor)
        if not text:
            return replace(draft.without_summary, error="The model's summary was empty.")
        if after > draft.event.tokens_before * (1 - SHRINK_SHARE):
            error = f"With the model's summary the request would still have about {after:,} tokens."
            return replace(draft.without_summary, error=error)
        return replace(draft.event, summary=await self._contents.store(text), tokens_after=after)

    def _refused(
        self, call: ModelCall, undone: ContextCompacted, attempt: int, error: BudgetExceeded
    ) -> tuple[Settlement, list[NewEvent]]:
        settlement, events = refused(call, attempt, error)
        return settlement, [*events, self._event(call, replace(undone, error=str(error)))]

    async def _stopped(self, call: ModelCall, attempt: int) -> None:
        result = CallModelResult(ModelOutcome.STOPPED, call.spec.effect_id, FinishReason.STOPPED)
        event = failed_event(call, attempt, "stopped", STOPPED_TEXT, priced_usage(call, UNKNOWN_USAGE))
        await self._journal.settle(call.spec, attempt, Settlement(EffectState.CANCELLED, encode(result)), [event])

    async def _failed(self, call: ModelCall, undone: ContextCompacted, attempt: int, error: MilepostError) -> Fit:
        last = activity.info().attempt >= CALL_MODEL.retry.maximum_attempts
        following = following_try(call, error, last=last)
        usage = charge_of(call, error)
        if following is not None:
            await self._record(call, [retried_event(call, attempt, error.code, str(error), usage, following)])
            raise retry_error(error, following.delay) from error
        result = CallModelResult(ModelOutcome.FAILED, call.spec.effect_id, error_code=error.code)
        events = [
            failed_event(call, attempt, error.code, str(error), usage),
            self._event(call, replace(undone, error=f"The summary failed: {error}"[:2_000])),
        ]
        outcome = Settlement(EffectState.FAILED, encode(result), error.code, str(error))
        await self._journal.settle(call.spec, attempt, outcome, events)
        return Fit(Outcome.COMPACTED)
