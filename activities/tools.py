"""`run_tool`: one tool call, recorded as an effect."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from temporalio import activity

from activities.boundary import boundary
from activities.conversation import Conversations, TurnContext
from activities.custom import LOST_TEXT as CUSTOM_LOST_TEXT
from activities.custom import CustomCalls
from activities.directories import moves
from activities.guard import heartbeats
from activities.hooks import Asked, HookedCalls, values_of, withheld
from activities.internal import InternalCalls
from activities.patience import patient, waited
from activities.sandboxed import LOST_TEXT, Opened, SandboxedCalls
from activities.siblings import enter_alone
from activities.toolcalls import (
    Result,
    ToolCall,
    boundary_result,
    digest,
    gate_of,
    is_sandboxed,
    plan_arguments,
    policy_of,
)
from milepost.contracts.activities import (
    END_CALLS,
    RUN_TOOL,
    EndCallsParams,
    EndCallsResult,
    RunToolParams,
    RunToolResult,
)
from milepost.domain.content import Content
from milepost.domain.effects import Effect, EffectClass, EffectSpec, EffectState
from milepost.domain.errors import Fenced, MilepostError, ToolRejected
from milepost.domain.events import ToolFinished
from milepost.domain.messages import FinishReason, ToolCallPart
from milepost.domain.tools import Approval
from milepost.engine.effects import Entry, effect_id, idempotency_key
from milepost.ledger.codec import decode, encode
from milepost.ports.ledger import NewEvent
from milepost.services.contents import Contents
from milepost.services.effects import EffectJournal, Entered, Settlement
from milepost.services.finishing import call_place, call_position, tool_event_key
from milepost.services.stops import StopSignal, StopWatch
from milepost.tools import Planned, PlannedCustom, PlannedInternal, PlannedProcess, PlannedTool, plan


class ToolActivities:
    """`run_tool`."""

    def __init__(
        self,
        contents: Contents,
        conversations: Conversations,
        journal: EffectJournal,
        sandboxed: SandboxedCalls,
        custom: CustomCalls,
        internal: InternalCalls,
        hooked: HookedCalls,
        stops: StopWatch,
    ) -> None:
        self._contents = contents
        self._conversations = conversations
        self._journal = journal
        self._sandboxed = sandboxed
        self._custom = custom
        self._internal = internal
        self._hooked = hooked
        self._stops = stops

    @activity.defn(name=RUN_TOOL.name)
    async def run_tool(self, params: RunToolParams) -> RunToolResult:
        """Run the call once, attach to it, or return its recorded end. A refused call gets an error result."""
        with boundary(), self._stops.watch(params.turn_id) as stop:
            async with patient():
                return await self._run(params, stop)

    async def _run(self, params: RunToolParams, stop: StopSignal) -> RunToolResult:
        context = await self._conversations.call(params.turn_id, params.agent, params.model_effect_id)
        called = context.model_call(params.model_effect_id)
        part = called.message.calls[params.index]
        arguments = await self._contents.load(part.arguments)
        try:
            planned = _plan(context, called.finish, part.tool, arguments)
        except ToolRejected as error:
            return await self._reject(params, part, error)
        asked = Asked(params, part, context, arguments, values_of(planned, arguments), stop)
        checked = await self._hooked.before(asked, planned)
        content = part.arguments
        if checked.rewritten_by:
            content = await self._contents.store(checked.arguments, "application/json")
        spec = _spec(params, part, context, checked.arguments, content)
        call = ToolCall(params, part, spec, context, checked.planned, checked.arguments, stop, checked.rewritten_by)
        if checked.stopped:
            return await self._not_run(call, Entered(Entry.DISPATCH, None, stop_requested=True))
        if checked.denied is not None:
            return await self._not_run(call, await self._journal.deny(spec, params.claim, *checked.denied))
        return await self._perform(call)

    @activity.defn(name=END_CALLS.name)
    async def end_calls(self, params: EndCallsParams) -> EndCallsResult:
        """Kill the calls of a turn that no attempt attends to, and record how each ended."""
        with boundary():
            async with heartbeats():
                return EndCallsResult(await self.close_calls(params.turn_id, params.session_id))

    async def close_calls(self, turn_id: str, session_id: str) -> int:
        """End the open attachable calls of a turn in this host's container; return how many have a known end now.

        One whose end cannot be learned stays open: the turn's end makes it `uncertain`.
        Raises TurnNotFound, SandboxUnavailable.
        """
        effects = await self._conversations.open_calls(turn_id)
        if not effects or not await self._sandboxed.has(session_id):
            return 0
        closed = 0
        for effect in effects:
            closed += await self._close(effect)
        return closed

    async def _close(self, effect: Effect) -> int:
        spec = effect.spec
        round_, index = call_place(spec.position)
        context = await self._conversations.turn(spec.turn_id, spec.agent)
        part = context.call_at(round_, index)
        try:
            # Hooks may have changed what the model wrote.
            planned = plan(part.tool, await self._contents.load(spec.arguments or part.arguments))
        except MilepostError:
            return 0
        if not isinstance(planned, PlannedTool):
            return 0
        result = await self._sandboxed.end(context.session, spec.effect_id, part.tool, planned)
        if result is None:
            return 0
        await self._sandboxed.left(context.session, spec, part.tool, effect.attempt, result)
        result = withheld(context.started, part.tool, result)
        where = RunToolParams(spec.turn_id, spec.session_id, "", spec.agent, round_, index, part.tool, "")
        event = await self._finished(where, part, spec.effect_id, effect.attempt, result)
        returned = encode(boundary_result(spec.effect_id, result))
        message = result.text if result.is_error else None
        settlement = Settlement(result.state, returned, result.error_code, message)
        with contextlib.suppress(Fenced):
            await self._journal.settle(spec, effect.attempt, settlement, [event])
        return 1

    async def _reject(self, params: RunToolParams, part: ToolCallPart, error: ToolRejected) -> RunToolResult:
        result = Result(EffectState.FAILED, str(error), True, {"rejected": True}, error_code=error.code)
        events = [await self._finished(params, part, "", 0, result)]
        await self._journal.record(params.session_id, params.turn_id, params.claim, events)
        return boundary_result("", result)

    async def _perform(self, call: ToolCall) -> RunToolResult:
        params, spec = call.params, call.spec
        gate = gate_of(call)
        if gate.policy is Approval.ASK:
            # Before the sandbox is opened: nothing is made ready for a call that may never run.
            held = await self._journal.ask(spec, params.claim, gate)
            if held is not None:
                return await self._not_run(call, held)
        opened = await self._sandboxed.open(call) if is_sandboxed(call) else Opened()
        entered = await enter_alone(self._journal, call, opened, gate)
        effect = entered.effect
        if effect is None or entered.stop_requested or entered.entry not in (Entry.DISPATCH, Entry.ATTACH):
            return await self._not_run(call, entered)
        if effect.result is not None:
            result = decode(effect.result, Result)
        else:
            result = await self._outcome(call, opened, entered.entry, effect.attempt)
            if isinstance(call.planned, PlannedCustom) and self._hooked.sees(call.context.started, call.part.tool):
                # Nobody can be asked for it again, as a sandbox can.
                await self._journal.note(spec, effect.attempt, encode(result))
        values = values_of(call.planned, call.arguments)
        asked = Asked(params, call.part, call.context, call.arguments, values, call.stop)
        result = _noted(call, await self._hooked.after(asked, result))
        return await asyncio.shield(self._settle(call, effect.attempt, result))

    async def _outcome(self, call: ToolCall, opened: Opened, entry: Entry, attempt: int) -> Result:
        if isinstance(call.planned, PlannedCustom):
            return await self._custom.outcome(call, call.planned, first=attempt == 1)
        if isinstance(call.planned, PlannedInternal):
            return await self._internal.outcome(call, call.planned)
        if isinstance(call.planned, PlannedProcess):
            return await self._sandboxed.processes.outcome(call, call.planned)
        attach_to = None
        if entry is Entry.ATTACH:
            attach_to = await self._sandboxed.attach_to(call.spec, attempt, opened.boot)
        return await self._sandboxed.outcome(call, call.planned, opened, attach_to)

    async def _not_run(self, call: ToolCall, entered: Entered) -> RunToolResult:
        """The result of a call that is not run now: it waits, was stopped, or has its end already."""
        params, spec, effect = call.params, call.spec, entered.effect
        if effect is None or entered.stop_requested:
            return RunToolResult(spec.effect_id, EffectState.CANCELLED, "", is_error=True, stopped=True)
        if entered.approval is not None:
            seconds = (entered.approval.expires_at - entered.at) / 1_000_000
            waiting = RunToolResult(spec.effect_id, effect.state, "", is_error=False)
            return replace(waiting, approval_id=entered.approval.approval_id, wait_seconds=seconds)
        if effect.result is not None:
            return decode(effect.result, RunToolResult)
        result = await self._known_end(effect)
        events = [await self._finished(params, call.part, spec.effect_id, effect.attempt, result)]
        await self._journal.record(params.session_id, params.turn_id, params.claim, events)
        return boundary_result(spec.effect_id, result)

    async def _known_end(self, effect: Effect) -> Result:
        """What the model is told of a call whose end no attempt of it has recorded."""
        if effect.state is EffectState.DENIED:
            text = effect.error_message or "The call was denied."
            return Result(effect.state, text, True, {"denied": effect.error_code}, error_code=effect.error_code)
        found = await self._conversations.reconciliation(effect.spec)
        if found is None:
            attachable = effect.spec.effect_class is EffectClass.ATTACHABLE
            return Result(EffectState.UNCERTAIN, LOST_TEXT if attachable else CUSTOM_LOST_TEXT, True, {})
        output = "" if found.result is None else await self._contents.load(found.result)
        text = output or f"A person reconciled this call: {found.resolution.replace('_', ' ')}."
        is_error = effect.state is not EffectState.SUCCEEDED
        return Result(effect.state, text, is_error, {"reconciled": found.resolution})

    async def _settle(self, call: ToolCall, attempt: int, result: Result) -> RunToolResult:
        spec = call.spec
        if is_sandboxed(call):
            await self._sandboxed.left(call.context.session, spec, call.part.tool, attempt, result)
        returned = boundary_result(spec.effect_id, result)
        event = await self._finished(call.params, call.part, spec.effect_id, attempt, result)
        message = result.text if result.is_error and result.state is not EffectState.SUCCEEDED else None
        outcome = Settlement(result.state, encode(returned), result.error_code, message)
        await self._journal.settle(spec, attempt, outcome, [event, *moves(call, result)])
        return returned

    async def _finished(
        self, params: RunToolParams, part: ToolCallPart, effect: str, attempt: int, result: Result
    ) -> NewEvent:
        finished = ToolFinished(
            turn_id=params.turn_id,
            agent=params.agent,
            effect_id=effect,
            attempt=attempt,
            round=params.round,
            index=params.index,
            call_id=part.call_id,
            tool=part.tool,
            state=result.state,
            output=await self._contents.store(result.text),
            is_error=result.is_error,
            detail=result.detail if not waited() else {**result.detail, "notes": list(waited())},
            # Whoever wants more than `output` asks for the whole.
            full_output=None if result.full is None else await self._contents.store(result.full, preview=0),
        )
        position = call_position(params.round, params.index)
        return NewEvent(tool_event_key(params.turn_id, params.agent, position, "finished"), finished, params.turn_id)


def _plan(context: TurnContext, finish: FinishReason, tool: str, arguments: str) -> Planned:
    if finish is FinishReason.LENGTH:
        raise ToolRejected(
            "The answer was cut off at the length limit, so this call was not executed.", fix="Send it again, shorter."
        )
    offered = [definition.name for definition in context.started.tools]
    if tool not in offered:
        raise ToolRejected(f"There is no tool '{tool}'.", fix=f"Offered tools: {', '.join(offered) or 'none'}.")
    return plan_arguments(context.started, tool, arguments)


def _noted(call: ToolCall, result: Result) -> Result:
    """The model is told that something else was run than what it wrote."""
    if not call.rewritten_by:
        return result
    names = ", ".join(f"'{name}'" for name in call.rewritten_by)
    note = f"[the arguments were changed before the call was made, by the hook {names}]"
    detail = {**result.detail, "rewritten_by": list(call.rewritten_by)}
    return replace(result, text=f"{result.text}\n{note}", detail=detail)


def _spec(
    params: RunToolParams, part: ToolCallPart, context: TurnContext, arguments: str, content: Content
) -> EffectSpec:
    operation = f"tool:{part.tool}"
    position = call_position(params.round, params.index)
    input_digest = digest(arguments)
    generation = context.turn.generation
    policy = policy_of(context.started, part.tool)
    return EffectSpec(
        effect_id=effect_id(params.turn_id, generation, params.agent, position, operation, input_digest),
        idempotency_key=idempotency_key(params.turn_id, params.agent, position, operation, input_digest),
        session_id=params.session_id,
        turn_id=params.turn_id,
        generation=generation,
        agent=params.agent,
        position=position,
        operation=operation,
        effect_class=policy.effect_class if policy else EffectClass.AT_MOST_ONCE,
        input_digest=input_digest,
        call_id=part.call_id,
        arguments=content,
    )
