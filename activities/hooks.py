"""Asking hooks about a tool call. A hook is an effect of its own: asked once, its word is recorded and holds."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from activities.conversation import TurnContext
from activities.guard import Stopped, guarded
from activities.toolcalls import Result, digest, plan_arguments
from milepost.contracts.activities import RunToolParams
from milepost.domain.effects import EffectClass, EffectSpec, EffectState
from milepost.domain.errors import HookFailed, MilepostError, ToolRejected
from milepost.domain.events import AgentStarted, HookDecided
from milepost.domain.hooks import HookDecision, HookRule, HookVerdict, HookWhen, OnFailure
from milepost.domain.messages import ToolCallPart
from milepost.engine.effects import Entry, effect_id, idempotency_key
from milepost.ledger.codec import canonical_bytes, decode, encode
from milepost.ports.hooks import Decision, HookCall, Hooks
from milepost.ports.ledger import NewEvent
from milepost.security.redaction import Redactor
from milepost.services.contents import Contents
from milepost.services.effects import EffectJournal, Settlement
from milepost.services.finishing import CANCELLED_TEXT
from milepost.services.stops import StopSignal
from milepost.tools import Planned, PlannedTool, render_answer

TRIES = 3
"""Of a hook that cannot be reached or is busy; each with the same key."""

PAUSE_SECONDS = 0.3
DENIED_BY_HOOK = "denied_by_hook"


@dataclass(frozen=True, slots=True)
class Asked:
    """The call that hooks are asked about. `arguments` is JSON text, `values` what it says."""

    params: RunToolParams
    part: ToolCallPart
    context: TurnContext
    arguments: str
    values: Mapping[str, Any]
    stop: StopSignal


@dataclass(frozen=True, slots=True)
class Checked:
    """What is left of a call after its before-hooks.

    `arguments` and `planned` are those to go on with; `rewritten_by` names the hooks that changed them. A denial has
    its code and text for the model.
    """

    arguments: str
    planned: Planned
    rewritten_by: tuple[str, ...] = ()
    denied: tuple[str, str] | None = None
    stopped: bool = False


class HookedCalls:
    """Asks the hooks that a turn recorded, in their order."""

    def __init__(self, hooks: Hooks, contents: Contents, journal: EffectJournal, redactor: Redactor) -> None:
        self._hooks = hooks
        self._contents = contents
        self._journal = journal
        self._redactor = redactor

    async def before(self, asked: Asked, planned: Planned) -> Checked:
        """Ask about a call that has not been made. Each hook sees the arguments as the one before it left them."""
        started, tool = asked.context.started, asked.part.tool
        checked = Checked(asked.arguments, planned)
        for number, rule in enumerate(_rules(started, HookWhen.BEFORE, tool)):
            decision = await self._decide(rule, number, asked)
            if decision is None:
                return replace(checked, stopped=True)
            if decision.verdict is HookVerdict.DENY:
                return replace(checked, denied=_denial(rule, tool, decision))
            if decision.verdict is HookVerdict.REWRITE and decision.arguments is not None:
                text = await self._contents.load(decision.arguments)
                names = (*checked.rewritten_by, rule.name)
                checked = Checked(text, plan_arguments(started, tool, text), names)
                asked = replace(asked, arguments=text, values=json.loads(text))
        return checked

    def sees(self, started: AgentStarted, tool: str) -> bool:
        """Whether a hook is to see results of this tool."""
        return bool(_rules(started, HookWhen.AFTER, tool))

    async def after(self, asked: Asked, result: Result) -> Result:
        """Ask about a result before anybody gets it. Only what a call really brought is shown to hooks."""
        rules = _rules(asked.context.started, HookWhen.AFTER, asked.part.tool)
        if rules and result.state not in (EffectState.SUCCEEDED, EffectState.FAILED):
            return withheld(asked.context.started, asked.part.tool, result)
        for number, rule in enumerate(rules):
            decision = await self._decide(rule, number, asked, result)
            if decision is None:
                return replace(_without_output(rule, result, _unseen(rule)), stopped=True)
            if decision.verdict is HookVerdict.DENY:
                why = f": {decision.reason}" if decision.reason else "."
                text = f"The hook '{rule.name}' withheld the result{why}"
                return _without_output(rule, result, text)
            if decision.verdict is HookVerdict.REWRITE and decision.output is not None:
                output = render_answer(
                    await self._contents.load(decision.output), is_error=result.is_error, detail=result.detail
                )
                full = _original(result) if rule.keep_original else output.full_text
                result = replace(result, text=output.text, full=full, detail=_told(result, rule, decision.verdict))
        return result

    async def _decide(
        self, rule: HookRule, number: int, asked: Asked, result: Result | None = None
    ) -> HookDecision | None:
        """The hook's word, recorded or new; None if the turn is to stop."""
        spec = _spec(rule, number, asked, result)
        entered = await self._journal.enter(spec, asked.params.claim, lambda attempt: [])
        effect = entered.effect
        if effect is None or entered.stop_requested:
            return None
        if entered.entry is not Entry.DISPATCH:
            return decode(effect.result, HookDecision) if effect.result is not None else None
        try:
            given = await guarded(self._tried(_call(rule, asked, spec, result), rule.timeout), asked.stop)
            if given.verdict is HookVerdict.REWRITE and given.arguments is not None:
                given = replace(given, arguments=_usable(rule, asked, given.arguments, self._redactor))
            decision = await self._stored(given)
        except Stopped:
            text = "The turn was stopped while the hook was asked."
            await self._journal.settle(
                spec, effect.attempt, Settlement(EffectState.UNCERTAIN, None, "stopped", text), []
            )
            return None
        except MilepostError as error:
            decision = self._failed(rule, error)
        state = EffectState.FAILED if decision.failed else EffectState.SUCCEEDED
        code = HookFailed.code if decision.failed else None
        settlement = Settlement(state, encode(decision), code, decision.reason if decision.failed else None)
        event = _event(rule, asked, spec, decision, result)
        await asyncio.shield(self._journal.settle(spec, effect.attempt, settlement, [event]))
        return decision

    async def _tried(self, call: HookCall, seconds: float) -> Decision:
        for number in range(1, TRIES + 1):
            try:
                return await self._hooks.ask(call, seconds)
            except HookFailed as error:
                if not error.retryable_now or number == TRIES:
                    raise
            await asyncio.sleep(PAUSE_SECONDS * number)
        raise AssertionError("the last try returns or raises")

    async def _stored(self, given: Decision) -> HookDecision:
        arguments = output = None
        if given.arguments is not None and given.verdict is HookVerdict.REWRITE:
            arguments = await self._contents.store(_json(given.arguments), "application/json")
        if given.output is not None and given.verdict is HookVerdict.REWRITE:
            output = await self._contents.store(self._redactor.certain(given.output))
        reason = None if given.reason is None else self._redactor(given.reason)
        return HookDecision(given.verdict, reason, False, arguments, output)

    def _failed(self, rule: HookRule, error: MilepostError) -> HookDecision:
        # A hook that wants other arguments and gives unusable ones has not said that those of the model are fine.
        denies = rule.on_failure is OnFailure.DENY or isinstance(error, _UnusableRewrite)
        return HookDecision(HookVerdict.DENY if denies else HookVerdict.ALLOW, self._redactor(str(error)), failed=True)


class _UnusableRewrite(HookFailed):
    """Arguments of a hook that do not fit the tool."""


def withheld(started: AgentStarted, tool: str, result: Result) -> Result:
    """A result that no hook can be asked about any more, without the output that one would have to see."""
    rules = _rules(started, HookWhen.AFTER, tool)
    if not rules or result.state is EffectState.UNCERTAIN:
        return result
    if result.state is EffectState.CANCELLED:
        return replace(result, text=CANCELLED_TEXT, full=None)
    return _without_output(rules[0], result, _unseen(rules[0]))


def _rules(started: AgentStarted, when: HookWhen, tool: str) -> list[HookRule]:
    return [rule for rule in started.hooks if rule.covers(when, tool)]


def _spec(rule: HookRule, number: int, asked: Asked, result: Result | None) -> EffectSpec:
    params, generation = asked.params, asked.context.turn.generation
    operation = f"hook:{rule.name}"
    position = f"hook.{params.round}.{params.index}.{rule.when}.{number}"
    seen: dict[str, Any] = {"tool": asked.part.tool, "arguments": asked.arguments}
    if result is not None:
        seen |= {"output": result.text, "is_error": result.is_error}
    input_digest = hashlib.sha256(canonical_bytes(seen)).hexdigest()
    return EffectSpec(
        effect_id=effect_id(params.turn_id, generation, params.agent, position, operation, input_digest),
        idempotency_key=idempotency_key(params.turn_id, params.agent, position, operation, input_digest),
        session_id=params.session_id,
        turn_id=params.turn_id,
        generation=generation,
        agent=params.agent,
        position=position,
        operation=operation,
        effect_class=EffectClass.KEYED,
        input_digest=input_digest,
        call_id=asked.part.call_id,
    )


def _call(rule: HookRule, asked: Asked, spec: EffectSpec, result: Result | None) -> HookCall:
    return HookCall(
        hook=rule.name,
        when=rule.when,
        tool=asked.part.tool,
        # A package may change what it is given.
        arguments=copy.deepcopy(asked.values),
        idempotency_key=spec.idempotency_key,
        session_id=spec.session_id,
        turn_id=spec.turn_id,
        agent=spec.agent,
        call_id=asked.part.call_id,
        output=None if result is None else result.text,
        is_error=None if result is None else result.is_error,
    )


def _usable(rule: HookRule, asked: Asked, arguments: Mapping[str, Any], redactor: Redactor) -> Mapping[str, Any]:
    """The arguments without our own secrets, as those of a model are. Raises _UnusableRewrite."""
    try:
        hidden: dict[str, Any] = _hidden(json.loads(_json(arguments)), redactor)
        plan_arguments(asked.context.started, asked.part.tool, _json(hidden))
    except (ToolRejected, ValueError, TypeError, RecursionError) as error:
        why = "they are nested too deeply" if isinstance(error, RecursionError) else redactor.cut(str(error), 1000)
        raise _UnusableRewrite(f"The arguments of the hook '{rule.name}' cannot be used: {why}") from error
    return hidden


def _hidden(value: Any, redactor: Redactor) -> Any:
    """Each text without secrets. Raises RecursionError for a value that no tool would accept."""
    if isinstance(value, str):
        return redactor.certain(value)
    if isinstance(value, list):
        return [_hidden(item, redactor) for item in value]
    if isinstance(value, dict):
        return {redactor.certain(name): _hidden(item, redactor) for name, item in value.items()}
    return value


def _event(rule: HookRule, asked: Asked, spec: EffectSpec, decision: HookDecision, result: Result | None) -> NewEvent:
    replaced = result is not None and decision.verdict is not HookVerdict.ALLOW
    event = HookDecided(
        turn_id=spec.turn_id,
        agent=spec.agent,
        effect_id=spec.effect_id,
        hook=rule.name,
        when=rule.when,
        round=asked.params.round,
        index=asked.params.index,
        call_id=asked.part.call_id,
        tool=asked.part.tool,
        verdict=decision.verdict,
        reason=decision.reason,
        failed=decision.failed,
        arguments=decision.arguments,
        original_digest=digest(_original(result)) if replaced and result is not None else None,
    )
    return NewEvent(f"{spec.effect_id}/decided", event, spec.turn_id)


def _denial(rule: HookRule, tool: str, decision: HookDecision) -> tuple[str, str]:
    if decision.failed:
        return HookFailed.code, f"{tool} was not run: the hook '{rule.name}' failed. {decision.reason or ''}".rstrip()
    why = f" Reason: {decision.reason}" if decision.reason else ""
    return DENIED_BY_HOOK, f"{tool} was not run: the hook '{rule.name}' denied it.{why}"


def _unseen(rule: HookRule) -> str:
    return f"The turn was stopped before the hook '{rule.name}' had seen the result."


def _original(result: Result) -> str:
    return result.text if result.full is None else result.full


def _without_output(rule: HookRule, result: Result, why: str) -> Result:
    text = f"The call was made and has {result.state}. {why}"
    full = _original(result) if rule.keep_original else None
    return replace(result, text=text, is_error=True, full=full, detail=_told(result, rule, HookVerdict.DENY))


def _told(result: Result, rule: HookRule, verdict: HookVerdict) -> dict[str, Any]:
    return {**result.detail, "hooks": {**result.detail.get("hooks", {}), rule.name: verdict.value}}


def _json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(arguments), ensure_ascii=False, allow_nan=False)


def values_of(planned: Planned, arguments: str) -> Mapping[str, Any]:
    """The arguments of a planned call as an object; they were checked, so they parse."""
    if not isinstance(planned, PlannedTool):
        return planned.arguments
    value = json.loads(arguments) if arguments.strip() else {}
    # One that was encoded twice.
    return json.loads(value) if isinstance(value, str) else value
