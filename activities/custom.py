"""Running a call of a tool of the user's own: an HTTP peer or a Python function, beside the event loop and bounded."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import Any

from activities.guard import Stopped, guarded
from activities.toolcalls import Result, ToolCall
from milepost.domain.effects import RERUN_CLASSES, EffectClass, EffectState
from milepost.domain.errors import MilepostError, OutcomeUnknown, ToolFailed
from milepost.ports.tools import Answer, Call, CustomTools
from milepost.security.redaction import Redactor
from milepost.services.finishing import CANCELLED_TEXT
from milepost.tools import PlannedCustom, render_answer

TRIES = 3
"""Of a call that may be made again, when the peer cannot be reached, is busy, or does not answer."""

PAUSE_SECONDS = 0.5
HIDE_INLINE_CHARACTERS = 256 * 1024
MAX_DETAILS = 20
MAX_DETAIL_CHARACTERS = 1000

_UNKNOWN_WHEN_CUT = frozenset({EffectClass.KEYED, EffectClass.AT_MOST_ONCE})

UNKNOWN_TEXT = "Outcome unknown: {why} Check whether it took effect before you repeat it."
LOST_TEXT = UNKNOWN_TEXT.format(
    why="the worker was lost while the call was running, and it is not run again by itself."
)
CUT_TEXT = UNKNOWN_TEXT.format(why="the turn was stopped while the call was running.")


class CustomCalls:
    """Makes calls of tools of the user's own."""

    def __init__(self, tools: CustomTools, redactor: Redactor) -> None:
        self._tools = tools
        self._redactor = redactor

    async def outcome(self, call: ToolCall, planned: PlannedCustom, *, first: bool) -> Result:
        """Make the call; how it ended, or that this cannot be known. `first`: no attempt of it was made before."""
        kind = call.spec.effect_class
        if first and await call.stop.heard():
            return Result(EffectState.CANCELLED, CANCELLED_TEXT, True, {})
        try:
            answer = await guarded(self._tried(call, planned, kind in RERUN_CLASSES), call.stop)
        except Stopped:
            if kind in _UNKNOWN_WHEN_CUT:
                return Result(EffectState.UNCERTAIN, CUT_TEXT, True, {}, error_code="stopped", stopped=True)
            return Result(EffectState.CANCELLED, CANCELLED_TEXT, True, {})
        except OutcomeUnknown as error:
            why = self._redactor(str(error))
            if kind in _UNKNOWN_WHEN_CUT:
                text = UNKNOWN_TEXT.format(why=why)
                return Result(EffectState.UNCERTAIN, text, True, {"reason": why}, error_code=error.code)
            return await self._result(Answer(why, is_error=True), planned, error.code)
        except ToolFailed as error:
            return await self._result(Answer(str(error), True, error.detail), planned, error.code)
        except MilepostError as error:
            return await self._result(Answer(f"{call.part.tool} was not run: {error}", True), planned, error.code)
        return await self._result(answer, planned, "tool_failed" if answer.is_error else None)

    async def _tried(self, call: ToolCall, planned: PlannedCustom, may_repeat: bool) -> Answer:
        for number in range(1, TRIES + 1):
            try:
                return await self._tools.run(_call(call, planned), planned.timeout)
            except (ToolFailed, OutcomeUnknown) as error:
                passing = not isinstance(error, ToolFailed) or error.retryable_now
                if not (may_repeat and passing) or number == TRIES:
                    raise
            await asyncio.sleep(PAUSE_SECONDS * number)
        raise AssertionError("the last try returns or raises")

    async def _result(self, answer: Answer, planned: PlannedCustom, code: str | None) -> Result:
        text = answer.text
        # Before it is shortened, since half a secret is none that can be found.
        if len(text) > HIDE_INLINE_CHARACTERS:
            text = await asyncio.to_thread(self._redactor.certain, text)
        else:
            text = self._redactor.certain(text)
        detail = self._detail(answer.detail)
        if planned.repaired:
            detail["repaired"] = True
        output = render_answer(text, is_error=answer.is_error, detail=detail)
        state = EffectState.FAILED if output.is_error else EffectState.SUCCEEDED
        return Result(state, output.text, output.is_error, output.detail, output.full_text, code)

    def _detail(self, given: Mapping[str, int | str]) -> dict[str, Any]:
        """What a package says beside its text, bounded."""
        found: dict[str, Any] = {}
        for name, value in list(given.items())[:MAX_DETAILS]:
            if isinstance(value, str):
                found[self._redactor.certain(str(name))[:64]] = self._redactor.cut(value, MAX_DETAIL_CHARACTERS)
            elif isinstance(value, int) and abs(value) < 2**63:
                found[self._redactor.certain(str(name))[:64]] = value
        return found


def _call(call: ToolCall, planned: PlannedCustom) -> Call:
    spec = call.spec
    return Call(
        tool=call.part.tool,
        # A package may change what it is given.
        arguments=copy.deepcopy(planned.arguments),
        idempotency_key=spec.idempotency_key,
        session_id=spec.session_id,
        turn_id=spec.turn_id,
        agent=spec.agent,
        call_id=call.part.call_id,
    )
