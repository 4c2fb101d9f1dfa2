"""`run_tool`: one tool call in the Session's sandbox, recorded as an effect."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, replace
from typing import Any

from temporalio import activity

from activities.boundary import boundary
from activities.conversation import Conversations, TurnContext
from activities.guard import Stopped, guarded, heartbeats
from milepost.contracts.activities import (
    END_CALLS,
    RUN_TOOL,
    EndCallsParams,
    EndCallsResult,
    PlannedCall,
    RunToolParams,
    RunToolResult,
    tool_label,
)
from milepost.domain.effects import Effect, EffectClass, EffectSpec, EffectState
from milepost.domain.errors import Fenced, MilepostError, SandboxLost, SandboxUnavailable, ToolRejected
from milepost.domain.events import ToolFinished, ToolStarted
from milepost.domain.messages import FinishReason, ToolCallPart
from milepost.domain.tools import BUILTIN_TOOL_POLICIES, Approval, Parallel, tool_approval
from milepost.engine.effects import Entry, effect_id, idempotency_key
from milepost.ledger.codec import decode, encode
from milepost.ports.ledger import NewEvent
from milepost.ports.sandbox import Outcome, Sandbox
from milepost.security.redaction import Redactor
from milepost.services.contents import Contents, text_bytes
from milepost.services.effects import EffectJournal, Entered, Settlement
from milepost.services.finishing import CANCELLED_TEXT, call_place, call_position, tool_event_key
from milepost.services.gate import Gate
from milepost.services.stops import StopSignal, StopWatch
from milepost.services.workbench import Workbench
from milepost.tools import PlannedTool, plan, render

HIDE_INLINE_BYTES = 256 * 1024
"""More output than this is searched for secrets beside the event loop."""

CLOSE_SECONDS = 15.0
KILL_TRIES = 120
KILL_REPEAT_SECONDS = 0.25

LOST_TEXT = (
    "Outcome unknown: the sandbox was lost while the call was running. "
    "Check the state of the files before you repeat it."
)


def plan_call(index: int, call: ToolCallPart, arguments: str, finish: FinishReason) -> PlannedCall:
    """What the workflow needs to know of a call: its overlap policy, its identity, whether it can run at all."""
    policy = BUILTIN_TOOL_POLICIES.get(call.tool)
    timeout, malformed = 60.0, finish is FinishReason.LENGTH
    try:
        timeout = plan(call.tool, arguments).timeout
    except ToolRejected:
        malformed = True
    return PlannedCall(
        index=index,
        tool=tool_label(call.tool),
        parallel=policy.parallel if policy else Parallel.EXCLUSIVE,
        input_digest=hashlib.sha256(text_bytes(arguments)).hexdigest(),
        malformed=malformed,
        timeout_seconds=timeout,
    )


@dataclass(frozen=True, slots=True)
class _Result:
    """The recorded part of a call's end."""

    state: EffectState
    text: str
    is_error: bool
    detail: dict[str, Any]
    full: str | None = None
    error_code: str | None = None


@dataclass(frozen=True, slots=True)
class _ToolCall:
    """A call that may run, with all that running it needs."""

    params: RunToolParams
    part: ToolCallPart
    spec: EffectSpec
    context: TurnContext
    planned: PlannedTool
    arguments: str
    stop: StopSignal


@dataclass(frozen=True, slots=True)
class _Opened:
    """The sandbox at the moment of dispatch, or why there is none. `boot` is what the dispatch records of it."""

    sandbox: Sandbox | None = None
    boot: str = ""
    error: MilepostError | None = None
    stopped: bool = False


class _SandboxWork:
    """Performing one operation in the sandbox, or attaching to it, with the way to end it.

    `attach_to` is None for the first dispatch. For a later one it is the supervisor that every earlier dispatch was
    meant for, or "" if there was not just one: then nothing may be started any more.
    """

    def __init__(self, workbench: Workbench, call: _ToolCall, opened: _Opened, attach_to: str | None) -> None:
        self._workbench = workbench
        self._call = call
        self._opened = opened
        self._attach_to = attach_to
        self._sandbox = opened.sandbox
        self._stopped = False
        self._done = asyncio.Event()

    async def run(self) -> Outcome:
        effect, operation = self._call.spec.effect_id, self._call.planned.operation
        try:
            if self._opened.error is not None:
                raise self._opened.error
            if self._sandbox is None:
                self._sandbox = await self._workbench.open(self._call.context.session)
            if self._attach_to:
                return await self._sandbox.attach(effect, operation=operation, boot=self._attach_to)
            if self._attach_to is not None:
                return await self._sandbox.attach(effect)
            if self._stopped:
                return Outcome(killed=True)
            once = self._call.spec.effect_class is EffectClass.ATTACHABLE
            return await self._sandbox.perform(effect, operation, boot=self._opened.boot if once else None)
        finally:
            self._done.set()

    async def kill(self) -> None:
        """Kill what runs; what has not begun will not begin.

        A kill may reach the sandbox before the operation does, so it is repeated until the operation has ended.
        """
        self._stopped = True
        for _ in range(KILL_TRIES):
            if self._sandbox is not None:
                try:
                    await self._sandbox.kill(self._call.spec.effect_id)
                except SandboxUnavailable as error:
                    raise SandboxLost(f"The kill could not be confirmed: {error}") from error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_REPEAT_SECONDS):
                    await self._done.wait()
                    return


class ToolActivities:
    """`run_tool`."""

    def __init__(
        self,
        contents: Contents,
        conversations: Conversations,
        journal: EffectJournal,
        workbench: Workbench,
        stops: StopWatch,
        redactor: Redactor,
    ) -> None:
        self._contents = contents
        self._conversations = conversations
        self._journal = journal
        self._workbench = workbench
        self._stops = stops
        self._redactor = redactor

    @activity.defn(name=RUN_TOOL.name)
    async def run_tool(self, params: RunToolParams) -> RunToolResult:
        """Run the call once, attach to it, or return its recorded end. A refused call gets an error result."""
        with boundary(), self._stops.watch(params.turn_id) as stop:
            context = await self._conversations.turn(params.turn_id, params.agent)
            called = context.model_call(params.model_effect_id)
            part = called.message.calls[params.index]
            arguments = await self._contents.load(part.arguments)
            try:
                planned = _plan(context, called.finish, part.tool, arguments)
            except ToolRejected as error:
                return await self._reject(params, part, error)
            spec = _spec(params, part, context, arguments)
            return await self._perform(_ToolCall(params, part, spec, context, planned, arguments, stop))

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
        if not effects or not await self._workbench.has(session_id):
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
            planned = plan(part.tool, await self._contents.load(part.arguments))
            sandbox = await self._workbench.open(context.session)
            await sandbox.kill(spec.effect_id)
            async with asyncio.timeout(CLOSE_SECONDS):
                outcome = await sandbox.attach(spec.effect_id)
        except (MilepostError, TimeoutError):
            return 0
        result = self._rendered(part.tool, planned, await self._hidden(outcome))
        where = RunToolParams(spec.turn_id, spec.session_id, "", spec.agent, round_, index, part.tool, "")
        event = await self._finished(where, part, spec.effect_id, effect.attempt, result)
        returned = encode(_boundary_result(spec.effect_id, result))
        message = result.text if result.is_error else None
        settlement = Settlement(result.state, returned, result.error_code, message)
        with contextlib.suppress(Fenced):
            await self._journal.settle(spec, effect.attempt, settlement, [event])
        return 1

    async def _reject(self, params: RunToolParams, part: ToolCallPart, error: ToolRejected) -> RunToolResult:
        result = _Result(EffectState.FAILED, str(error), True, {"rejected": True}, error_code=error.code)
        events = [await self._finished(params, part, "", 0, result)]
        await self._journal.record(params.session_id, params.turn_id, params.claim, events)
        return _boundary_result("", result)

    async def _perform(self, call: _ToolCall) -> RunToolResult:
        params, spec = call.params, call.spec
        gate = _gate(call)
        if gate.policy is Approval.ASK:
            # Before the sandbox is opened: nothing is made ready for a call that may never run.
            held = await self._journal.ask(spec, params.claim, gate)
            if held is not None:
                return await self._not_run(call, held)
        opened = await self._open(call)
        entered = await self._journal.enter(
            spec, params.claim, lambda attempt: [_started(call, attempt, opened.boot)], gate
        )
        effect = entered.effect
        if effect is None or entered.stop_requested or entered.entry not in (Entry.DISPATCH, Entry.ATTACH):
            return await self._not_run(call, entered)
        attach_to = None
        if entered.entry is Entry.ATTACH:
            attach_to = await self._attach_to(spec, effect.attempt, opened.boot)
        result = await self._outcome(call, opened, attach_to)
        return await asyncio.shield(self._settle(call, effect.attempt, result))

    async def _not_run(self, call: _ToolCall, entered: Entered) -> RunToolResult:
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
        return _boundary_result(spec.effect_id, result)

    async def _known_end(self, effect: Effect) -> _Result:
        """What the model is told of a call whose end no attempt of it has recorded."""
        if effect.state is EffectState.DENIED:
            text = effect.error_message or "The call was denied."
            return _Result(effect.state, text, True, {"denied": effect.error_code}, error_code=effect.error_code)
        found = await self._conversations.reconciliation(effect.spec)
        if found is None:
            return _Result(EffectState.UNCERTAIN, LOST_TEXT, True, {})
        output = "" if found.result is None else await self._contents.load(found.result)
        text = output or f"A person reconciled this call: {found.resolution.replace('_', ' ')}."
        is_error = effect.state is not EffectState.SUCCEEDED
        return _Result(effect.state, text, is_error, {"reconciled": found.resolution})

    async def _open(self, call: _ToolCall) -> _Opened:
        """Open the sandbox before the dispatch, which names it: that tells later whether a hand-over was possible."""
        try:
            sandbox = await guarded(self._workbench.open(call.context.session), call.stop)
        except Stopped:
            call.stop.known()
            return _Opened(stopped=True)
        except MilepostError as error:
            return _Opened(error=error)
        return _Opened(sandbox, sandbox.boot)

    async def _attach_to(self, spec: EffectSpec, attempt: int, boot: str) -> str:
        """`boot` if all attempts before this one were meant for that very supervisor, else ""."""
        earlier = await self._conversations.dispatches(spec, attempt - 1)
        known = len(earlier) == attempt - 1 and all(started.sandbox == boot for started in earlier)
        return boot if known else ""

    async def _outcome(self, call: _ToolCall, opened: _Opened, attach_to: str | None) -> _Result:
        if opened.stopped and attach_to is None:
            return _Result(EffectState.CANCELLED, CANCELLED_TEXT, True, {})
        work = _SandboxWork(self._workbench, call, opened, attach_to)
        try:
            outcome = await guarded(work.run(), call.stop, work.kill)
        except Stopped:
            return _Result(EffectState.CANCELLED, CANCELLED_TEXT, True, {})
        except SandboxLost as error:
            return _Result(EffectState.UNCERTAIN, LOST_TEXT, True, {"reason": error.message}, error_code=error.code)
        except MilepostError as error:
            if attach_to is not None:
                # It was dispatched before: that nobody can be asked now does not mean that it did not run.
                return _Result(EffectState.UNCERTAIN, LOST_TEXT, True, {"reason": str(error)}, error_code=error.code)
            return _Result(EffectState.FAILED, str(error), True, {}, error_code=error.code)
        return self._rendered(call.part.tool, call.planned, await self._hidden(outcome))

    def _rendered(self, tool: str, planned: PlannedTool, outcome: Outcome) -> _Result:
        output = render(tool, planned.operation, outcome)
        if outcome.killed:
            text = f"{CANCELLED_TEXT}\n{output.text}" if output.text else CANCELLED_TEXT
            return _Result(EffectState.CANCELLED, text, True, output.detail, output.full_text)
        state = EffectState.FAILED if output.is_error else EffectState.SUCCEEDED
        detail = {**output.detail, "repaired": True} if planned.repaired else output.detail
        return _Result(state, output.text, output.is_error, detail, output.full_text)

    async def _hidden(self, outcome: Outcome) -> Outcome:
        """The outcome without the values of our own secrets, which a Workspace may hold as well (`.env`).

        Before it is shortened, since half a secret is none that can be found.
        """
        size = len(outcome.stdout) + len(outcome.stderr)
        if size > HIDE_INLINE_BYTES:
            return await asyncio.to_thread(_without_secrets, outcome, self._redactor)
        return _without_secrets(outcome, self._redactor)

    async def _settle(self, call: _ToolCall, attempt: int, result: _Result) -> RunToolResult:
        spec = call.spec
        returned = _boundary_result(spec.effect_id, result)
        event = await self._finished(call.params, call.part, spec.effect_id, attempt, result)
        message = result.text if result.is_error else None
        outcome = Settlement(result.state, encode(returned), result.error_code, message)
        await self._journal.settle(spec, attempt, outcome, [event])
        return returned

    async def _finished(
        self, params: RunToolParams, part: ToolCallPart, effect: str, attempt: int, result: _Result
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
            detail=result.detail,
            full_output=None if result.full is None else await self._contents.store(result.full),
        )
        position = call_position(params.round, params.index)
        return NewEvent(tool_event_key(params.turn_id, params.agent, position, "finished"), finished, params.turn_id)


def _without_secrets(outcome: Outcome, redactor: Redactor) -> Outcome:
    error = outcome.error
    return replace(
        outcome,
        stdout=redactor.data(outcome.stdout),
        stderr=redactor.data(outcome.stderr),
        error=None if error is None else redactor.certain(error),
        detail={
            name: redactor.certain(value) if isinstance(value, str) else value for name, value in outcome.detail.items()
        },
    )


def _plan(context: TurnContext, finish: FinishReason, tool: str, arguments: str) -> PlannedTool:
    if finish is FinishReason.LENGTH:
        raise ToolRejected(
            "The answer was cut off at the length limit, so this call was not executed.", fix="Send it again, shorter."
        )
    offered = [definition.name for definition in context.started.tools]
    if tool not in offered:
        raise ToolRejected(f"There is no tool '{tool}'.", fix=f"Offered tools: {', '.join(offered) or 'none'}.")
    return plan(tool, arguments)


def _spec(params: RunToolParams, part: ToolCallPart, context: TurnContext, arguments: str) -> EffectSpec:
    operation = f"tool:{part.tool}"
    position = call_position(params.round, params.index)
    digest = hashlib.sha256(text_bytes(arguments)).hexdigest()
    generation = context.turn.generation
    policy = BUILTIN_TOOL_POLICIES.get(part.tool)
    return EffectSpec(
        effect_id=effect_id(params.turn_id, generation, params.agent, position, operation, digest),
        idempotency_key=idempotency_key(params.turn_id, params.agent, position, operation, digest),
        session_id=params.session_id,
        turn_id=params.turn_id,
        generation=generation,
        agent=params.agent,
        position=position,
        operation=operation,
        effect_class=policy.effect_class if policy else EffectClass.AT_MOST_ONCE,
        input_digest=digest,
        call_id=part.call_id,
        arguments=part.arguments,
    )


def _gate(call: _ToolCall) -> Gate:
    started, tool = call.context.started, call.part.tool
    return Gate(
        policy=tool_approval(tool, started.approvals),
        tool=tool,
        round=call.params.round,
        index=call.params.index,
        arguments=call.arguments,
        seconds=started.approval_seconds,
    )


def _started(call: _ToolCall, attempt: int, sandbox: str) -> NewEvent:
    params, spec = call.params, call.spec
    event = ToolStarted(
        turn_id=params.turn_id,
        agent=params.agent,
        effect_id=spec.effect_id,
        attempt=attempt,
        round=params.round,
        index=params.index,
        call_id=call.part.call_id,
        tool=call.part.tool,
        sandbox=sandbox,
    )
    key = tool_event_key(params.turn_id, params.agent, spec.position, f"started/{attempt}")
    return NewEvent(key, event, params.turn_id)


def _boundary_result(effect: str, result: _Result) -> RunToolResult:
    return RunToolResult(
        effect_id=effect,
        state=result.state,
        result_digest=hashlib.sha256(text_bytes(result.text)).hexdigest(),
        is_error=result.is_error,
        stopped=result.state is EffectState.CANCELLED,
    )
