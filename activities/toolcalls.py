"""One tool call on its way: what it is, how it ended, and what is recorded of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from activities.conversation import TurnContext
from milepost.contracts.activities import PlannedCall, RunToolParams, RunToolResult, tool_label
from milepost.domain.effects import EffectSpec, EffectState
from milepost.domain.errors import ArgumentsUnparsable, ToolRejected
from milepost.domain.events import AgentStarted, ToolStarted
from milepost.domain.longterm import LONG_TERM_TOOLS
from milepost.domain.messages import FinishReason, ToolCallPart
from milepost.domain.tools import (
    BUILTIN_TOOL_POLICIES,
    UNSANDBOXED_TOOLS,
    Approval,
    CustomTool,
    Parallel,
    ToolPolicy,
    tool_approval,
)
from milepost.ports.ledger import NewEvent
from milepost.services.contents import text_bytes
from milepost.services.finishing import tool_event_key
from milepost.services.gate import Gate
from milepost.services.stops import StopSignal
from milepost.tools import Planned, PlannedProcess, PlannedTool, plan, plan_custom


@dataclass(frozen=True, slots=True)
class Result:
    """The recorded part of a call's end. `stopped` tells that the turn's stop cut it short."""

    state: EffectState
    text: str
    is_error: bool
    detail: dict[str, Any]
    full: str | None = None
    error_code: str | None = None
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that may run, with all that running it needs. `rewritten_by` names hooks that changed its arguments."""

    params: RunToolParams
    part: ToolCallPart
    spec: EffectSpec
    context: TurnContext
    planned: Planned
    arguments: str
    stop: StopSignal
    rewritten_by: tuple[str, ...] = ()


def custom_tool(started: AgentStarted, name: str) -> CustomTool | None:
    """A tool of the user's own as the turn recorded it."""
    return next((tool for tool in started.custom_tools if tool.name == name), None)


def policy_of(started: AgentStarted, name: str) -> ToolPolicy | None:
    """What the turn knows of a tool; None for one that there is not."""
    tool = custom_tool(started, name)
    return tool.policy if tool is not None else BUILTIN_TOOL_POLICIES.get(name)


def plan_arguments(started: AgentStarted, tool: str, arguments: str) -> Planned:
    """Check a call's arguments. Raises ToolRejected, whose text is for the model."""
    custom = custom_tool(started, tool)
    if custom is None:
        return plan(tool, arguments)
    definition = next(definition for definition in started.tools if definition.name == tool)
    return plan_custom(definition, arguments, custom.timeout, defaults=tool in LONG_TERM_TOOLS)


def plan_call(
    started: AgentStarted, index: int, call: ToolCallPart, arguments: str, finish: FinishReason
) -> PlannedCall:
    """What the workflow needs to know of a call: overlap policy, identity, place, whether it can run at all."""
    policy = policy_of(started, call.tool)
    timeout, malformed = 60.0, finish is FinishReason.LENGTH
    fault = "cut" if malformed else ""
    try:
        timeout = plan_arguments(started, call.tool, arguments).timeout
    except ToolRejected as error:
        malformed = True
        fault = fault or ("json" if isinstance(error, ArgumentsUnparsable) else "")
    return PlannedCall(
        index=index,
        tool=tool_label(call.tool),
        parallel=policy.parallel if policy else Parallel.EXCLUSIVE,
        input_digest=digest(arguments),
        malformed=malformed,
        fault=fault,
        timeout_seconds=timeout,
        sandboxed=custom_tool(started, call.tool) is None and call.tool not in UNSANDBOXED_TOOLS,
    )


def digest(text: str) -> str:
    """SHA-256 of the exact text."""
    return hashlib.sha256(text_bytes(text)).hexdigest()


def gate_of(call: ToolCall) -> Gate:
    """What decides about the call beside policy rules."""
    started, tool = call.context.started, call.part.tool
    custom = custom_tool(started, tool)
    own = custom.policy.approval if custom else Approval.ASK
    return Gate(
        policy=tool_approval(tool, started.approvals, own),
        tool=tool,
        round=call.params.round,
        index=call.params.index,
        arguments=call.arguments,
        seconds=started.approval_seconds,
    )


def started_event(call: ToolCall, attempt: int, sandbox: str) -> NewEvent:
    """The `tool.started` event of a dispatch."""
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


def boundary_result(effect: str, result: Result) -> RunToolResult:
    """What the workflow is told."""
    return RunToolResult(
        effect_id=effect,
        state=result.state,
        result_digest=digest(result.text),
        is_error=result.is_error,
        stopped=result.stopped or result.state is EffectState.CANCELLED,
    )


def is_sandboxed(call: ToolCall) -> bool:
    """Whether it runs in the Session's sandbox."""
    return isinstance(call.planned, PlannedTool | PlannedProcess)
