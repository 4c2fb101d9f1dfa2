"""`call_model`: one streamed call to a provider, recorded as an effect."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from temporalio import activity

from activities.admission import enter_in_budget
from activities.boundary import boundary, retry_error
from activities.charges import ask_of, check_window, expected, in_time
from activities.compacting import still_too_long
from activities.compaction import Compactor, Outcome
from activities.conversation import Conversations
from activities.deltas import Call, DeltaWriter
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
from activities.patience import patient, waited
from activities.reminded import Reminded
from activities.routes import refused_as_too_long, routing_of
from milepost.contracts.activities import (
    CALL_MODEL,
    CallModelParams,
    CallModelResult,
    ModelOutcome,
    PlannedCall,
    boundary_text,
    tool_label,
)
from milepost.domain.compaction import MAX_COMPACTIONS
from milepost.domain.effects import EffectClass, EffectSpec, EffectState
from milepost.domain.errors import (
    BudgetExceeded,
    LedgerCorrupt,
    MilepostError,
    ModelContextTooLong,
    ModelFault,
    ModelIncomplete,
    PayloadTooLarge,
)
from milepost.domain.events import AgentStarted, ModelCalled
from milepost.domain.messages import (
    AssistantMessage,
    AssistantPart,
    FinishReason,
    ProviderState,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from milepost.domain.teams import AgentRole
from milepost.domain.tools import MAX_CALLS_PER_RESPONSE, MAX_TOOL_ARGUMENTS_BYTES, MAX_TOOL_NAME_BYTES
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.engine.effects import Entry, effect_id, idempotency_key
from milepost.ledger.codec import decode, encode
from milepost.ports.ledger import Ledger, NewEvent
from milepost.ports.models import ModelCompleted, ModelGateway, ModelRequest, ReasoningDelta, TextDelta, TokenCounters
from milepost.ports.system import Clock
from milepost.services.budgeting import Answered
from milepost.services.contents import Contents, text_bytes
from milepost.services.effects import EffectJournal, Settlement
from milepost.services.finishing import called_key, model_position
from milepost.services.stops import StopSignal, StopWatch

PlanCall = Callable[[AgentStarted, int, ToolCallPart, str, FinishReason], PlannedCall]
"""(what the turn records of the agent, index, call, whole arguments, finish reason) -> what the workflow
needs to know of the call."""


class ModelActivities:
    """`call_model`."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Clock,
        contents: Contents,
        conversations: Conversations,
        reminded: Reminded,
        journal: EffectJournal,
        gateway: ModelGateway,
        stops: StopWatch,
        plan_call: PlanCall,
        counters: TokenCounters,
        compactor: Compactor,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._contents = contents
        self._conversations = conversations
        self._reminded = reminded
        self._journal = journal
        self._gateway = gateway
        self._stops = stops
        self._plan_call = plan_call
        self._counters = counters
        self._compactor = compactor

    @activity.defn(name=CALL_MODEL.name)
    async def call_model(self, params: CallModelParams) -> CallModelResult:
        """Make the call, attach its text to the delta log, record its end. A finished call returns its record."""
        with boundary(), self._stops.watch(params.turn_id) as stop:
            async with patient():
                return await self._made(params, stop)

    async def _made(self, params: CallModelParams, stop: StopSignal) -> CallModelResult:
        for _ in range(2):
            fitted = await self._fitted(params, stop)
            if isinstance(fitted, CallModelResult):
                return fitted
            result = await self._entered(fitted, stop)
            if not await self._refused_as_too_long(fitted, result):
                return result
            fit = await self._compactor.after_refusal(fitted, stop)
            if fit.outcome is Outcome.STOPPED:
                return CallModelResult(ModelOutcome.STOPPED, fitted.spec.effect_id)
            if fit.outcome is Outcome.NONE:
                return result
        raise LedgerCorrupt(f"Turn {params.turn_id} is compacted again and again.")

    async def _entered(self, call: ModelCall, stop: StopSignal) -> CallModelResult:
        entered = await enter_in_budget(self._journal, call, lambda attempt, error: refused(call, attempt, error), stop)
        if entered.entry is Entry.RETURN_RECORDED and entered.effect is not None and entered.effect.result:
            return decode(entered.effect.result, CallModelResult)
        if entered.stop_requested or entered.entry is not Entry.DISPATCH or entered.effect is None:
            return CallModelResult(ModelOutcome.STOPPED, call.spec.effect_id)
        return await self._call(call, entered.effect.attempt, stop)

    async def _refused_as_too_long(self, call: ModelCall, result: CallModelResult) -> bool:
        """Whether the call failed and a shorter conversation might be taken, by this route or one it left."""
        if result.outcome is not ModelOutcome.FAILED or result.error_code is None:
            return False
        if result.error_code == ModelContextTooLong.code:
            return True
        if len(call.routing.routes) == 1 or not result.error_code.startswith("model_"):
            return False
        return await refused_as_too_long(self._ledger, call.params.session_id, call.spec.effect_id)

    async def _fitted(self, params: CallModelParams, stop: StopSignal) -> ModelCall | CallModelResult:
        """The call with a conversation that was compacted if it had to be; or that the turn was stopped meanwhile."""
        for _ in range(MAX_COMPACTIONS + 1):
            call = await self._resolve(params, stop)
            fit = await self._compactor.fit(call, stop)
            if fit.outcome is Outcome.STOPPED:
                return CallModelResult(ModelOutcome.STOPPED, call.spec.effect_id)
            if fit.outcome is Outcome.NONE:
                return replace(call, notes=(fit.note,) if fit.note else ())
        raise LedgerCorrupt(f"Turn {params.turn_id} is compacted again and again.")

    async def _resolve(self, params: CallModelParams, stop: StopSignal) -> ModelCall:
        context, core_memory = await self._reminded.whole(params, stop)
        started = context.started
        script = context.turn.request.options.script
        request = ModelRequest(
            provider=started.provider,
            model=started.model,
            agent=params.agent,
            system_prompt=f"{started.system_prompt}{core_memory}",
            messages=context.messages,
            # A Coordinator has tools to hand on, not to use.
            tools=() if started.role is AgentRole.COORDINATOR else started.tools,
            sampling=started.sampling,
            call_number=params.round,
            attempt=0,
            idempotency_key="",
            script=None if script is None else await self._contents.load(script),
        )
        digest = hashlib.sha256(encode(request)).hexdigest()
        operation = f"model:{started.provider}/{started.model}"
        position = model_position(params.round)
        generation = context.turn.generation
        key = idempotency_key(params.turn_id, params.agent, position, operation, digest)
        spec = EffectSpec(
            effect_id=effect_id(params.turn_id, generation, params.agent, position, operation, digest),
            idempotency_key=key,
            session_id=params.session_id,
            turn_id=params.turn_id,
            generation=generation,
            agent=params.agent,
            position=position,
            operation=operation,
            effect_class=EffectClass.MODEL,
            input_digest=digest,
        )
        routing = await routing_of(self._ledger, context, params.session_id, spec.effect_id)
        route = routing.route
        # The identity of the call is that of the agent's own route; what is sent is another matter.
        cache_key = hashlib.sha256(f"{params.session_id}/{params.agent}".encode()).hexdigest()[:32]
        request = replace(request, provider=route.provider, model=route.model, idempotency_key=key, cache_key=cache_key)
        known = context.factor if routing.index == 0 else None
        found = await expected(self._ledger, self._counters, started, request, known)
        elapsed = max(self._clock.now() - context.turn.created_at, 0) / 1_000_000
        return ModelCall(
            params, context, spec, request, routing, found, ask_of(started, request, routing.index, found, elapsed)
        )

    async def _call(self, call: ModelCall, attempt: int, stop: StopSignal) -> CallModelResult:
        spec, params = call.spec, call.params
        target = Call(params.session_id, params.turn_id, params.agent, spec.effect_id, attempt)
        async with DeltaWriter(self._ledger, self._clock, target) as deltas:
            request = replace(call.request, attempt=attempt)
            try:
                if await stop.heard():
                    # Between the dispatch and here: nothing is asked of the provider any more.
                    raise Stopped
                check_window(call.context.started, call.routing.index, call.expected)
                work = in_time(self._consume(request, deltas), call.context.started, call.ask.elapsed)
                completed = await guarded(work, stop)
            except Stopped:
                return await asyncio.shield(self._stopped(call, attempt, deltas))
            except MilepostError as error:
                return await self._failed(call, attempt, deltas, error)
            except Exception as error:
                fault = ModelFault(f"{type(error).__name__}: {error}")
                fault.__cause__ = error
                return await self._failed(call, attempt, deltas, fault)
        result = await asyncio.shield(self._answered(call, attempt, completed))
        if cancel_requested():
            raise asyncio.CancelledError
        return result

    async def _consume(self, request: ModelRequest, deltas: DeltaWriter) -> ModelCompleted:
        completed: ModelCompleted | None = None
        # Leaving the block closes the provider's connection, also when this task is cancelled.
        async with aclosing(self._gateway.stream(request)) as stream:
            async for item in stream:
                match item:
                    case TextDelta():
                        deltas.add("text", item.text)
                    case ReasoningDelta():
                        deltas.add("reasoning", item.text)
                    case ModelCompleted():
                        completed = item
        if completed is None:
            raise ModelIncomplete("The provider's stream ended without an answer.")
        return completed

    async def _answered(self, call: ModelCall, attempt: int, completed: ModelCompleted) -> CallModelResult:
        code, refusal = _refusal(completed.message.calls)
        try:
            return await self._record(call, attempt, completed, code, refusal)
        except BudgetExceeded as error:
            return await self._record(call, attempt, completed, error.code, str(error))

    async def _record(
        self, call: ModelCall, attempt: int, completed: ModelCompleted, code: str | None, refusal: str | None
    ) -> CallModelResult:
        """Record the answer, without its calls if there is a reason to refuse them. Raises BudgetExceeded."""
        accepted = completed.message if code is None else _without_calls(completed.message)
        message = await self._stored(accepted)
        calls = tuple(
            self._plan_call(call.context.started, index, part, part.arguments.text, completed.finish)
            for index, part in enumerate(accepted.calls)
        )
        text = accepted.text
        result = CallModelResult(
            outcome=ModelOutcome.ANSWERED if code is None else ModelOutcome.FAILED,
            effect_id=call.spec.effect_id,
            finish=completed.finish,
            calls=calls,
            text_digest=hashlib.sha256(text_bytes(text)).hexdigest() if text else "",
            error_code=code,
            error=refusal,
        )
        diagnostics = (*completed.diagnostics, *call.context.notes, *call.notes, *waited())
        usage = priced_usage(call, completed.usage)
        event = _called(call, attempt, message, completed.finish, diagnostics, usage)
        event = replace(event, provider=completed.provider, model=completed.model)
        known = usage.input_tokens + usage.cached_input_tokens if usage.complete else None
        await self._journal.settle(
            call.spec,
            attempt,
            Settlement(EffectState.SUCCEEDED, encode(result)),
            [_event(call, event)],
            Answered(call.ask, len(accepted.calls), known),
        )
        self._conversations.recorded(call.context, event)
        self._conversations.answered(call.context, call.spec.effect_id, message)
        return result

    async def _stored(self, message: AssistantMessage) -> AssistantMessage:
        parts: list[AssistantPart] = []
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                content = await self._contents.store(part.arguments.text, "application/json")
                parts.append(replace(part, arguments=content))
            else:
                parts.append(part)
        state = message.provider_state
        if state is not None:
            data = await self._contents.store(state.data.text, "application/json")
            state = ProviderState(state.provider, state.model, data)
        return AssistantMessage(tuple(parts), state)

    async def _stopped(self, call: ModelCall, attempt: int, deltas: DeltaWriter) -> CallModelResult:
        event = _called(call, attempt, _partial(deltas), FinishReason.STOPPED, (), priced_usage(call, UNKNOWN_USAGE))
        result = CallModelResult(ModelOutcome.STOPPED, call.spec.effect_id, FinishReason.STOPPED)
        await self._journal.settle(
            call.spec, attempt, Settlement(EffectState.CANCELLED, encode(result)), [_event(call, event)]
        )
        return result

    async def _failed(
        self, call: ModelCall, attempt: int, deltas: DeltaWriter, error: MilepostError
    ) -> CallModelResult:
        if isinstance(error, ModelContextTooLong):
            error = still_too_long(call, error)
        following = following_try(call, error, last=activity.info().attempt >= CALL_MODEL.retry.maximum_attempts)
        if following is None:
            return await self._settle_failed(call, attempt, deltas, error)
        retried = retried_event(call, attempt, error.code, str(error), charge_of(call, error), following)
        await self._journal.record(call.spec.session_id, call.spec.turn_id, call.params.claim, [retried])
        raise retry_error(error, following.delay) from error

    async def _settle_failed(
        self, call: ModelCall, attempt: int, deltas: DeltaWriter, error: MilepostError
    ) -> CallModelResult:
        result = CallModelResult(
            ModelOutcome.FAILED,
            call.spec.effect_id,
            error_code=error.code,
            error=boundary_text(str(error)),
        )
        partial = _partial(deltas)
        # What was streamed stays readable; its cost is counted once, by the failure.
        kept = _called(call, attempt, partial, FinishReason.INCOMPLETE, (), Usage())
        failed = failed_event(call, attempt, error.code, str(error), charge_of(call, error))
        events = [_event(call, kept)] if partial.parts else []
        events.append(failed)
        outcome = Settlement(EffectState.FAILED, encode(result), error.code, str(error))
        await self._journal.settle(call.spec, attempt, outcome, events)
        return result


def _partial(deltas: DeltaWriter) -> AssistantMessage:
    parts: list[AssistantPart] = []
    if deltas.text("reasoning"):
        parts.append(ReasoningPart(deltas.text("reasoning")))
    if deltas.text("text"):
        parts.append(TextPart(deltas.text("text")))
    return AssistantMessage(tuple(parts))


def _called(
    call: ModelCall,
    attempt: int,
    message: AssistantMessage,
    finish: FinishReason,
    diagnostics: tuple[str, ...],
    usage: Usage,
) -> ModelCalled:
    return ModelCalled(
        turn_id=call.params.turn_id,
        agent=call.params.agent,
        effect_id=call.spec.effect_id,
        attempt=attempt,
        round=call.params.round,
        provider=call.request.provider,
        model=call.request.model,
        message=message,
        finish=finish,
        usage=usage,
        diagnostics=diagnostics,
        route=call.routing.index,
    )


def _event(call: ModelCall, event: ModelCalled) -> NewEvent:
    return NewEvent(called_key(call.spec.effect_id), event, call.params.turn_id)


def _without_calls(message: AssistantMessage) -> AssistantMessage:
    return AssistantMessage(tuple(part for part in message.parts if not isinstance(part, ToolCallPart)))


def _refusal(calls: Sequence[ToolCallPart]) -> tuple[str, str] | tuple[None, None]:
    """Code and text of what makes the calls of an answer unacceptable, before any of them is looked at further."""
    if len(calls) > MAX_CALLS_PER_RESPONSE:
        return (
            "too_many_tool_calls",
            f"The model asked for {len(calls)} tool calls at once; at most {MAX_CALLS_PER_RESPONSE} are accepted.",
        )
    for part in calls:
        tool = tool_label(part.tool)
        for field, text, limit in (
            ("name", part.tool, MAX_TOOL_NAME_BYTES),
            ("arguments", part.arguments.text, MAX_TOOL_ARGUMENTS_BYTES),
        ):
            size = len(text_bytes(text))
            if size > limit:
                return PayloadTooLarge.code, str(PayloadTooLarge.of(f"Tool {tool}", field, size, limit))
    return None, None
