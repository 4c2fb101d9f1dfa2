"""The working directory of an agent's commands: where one begins, and what its end says of the next."""

from __future__ import annotations

from dataclasses import replace

from activities.toolcalls import Result, ToolCall
from milepost.domain.processes import WORKSPACE_DIRECTORY, ShellMoved
from milepost.ports.ledger import NewEvent
from milepost.ports.sandbox import Exec
from milepost.services.finishing import tool_event_key
from milepost.services.shells import Shells
from milepost.tools import PlannedTool

BEGAN_IN = "began_in"


async def placed(shells: Shells, call: ToolCall, planned: PlannedTool) -> PlannedTool:
    """The command in the directory of the ledger. Every attempt of a call finds the same: no other runs beside it."""
    operation = planned.operation
    if not isinstance(operation, Exec) or not operation.keep_cwd:
        return planned
    cwd = await shells.cwd(call.context.turn, call.params.agent)
    return replace(planned, operation=replace(operation, cwd=cwd))


def noted(planned: PlannedTool, result: Result) -> Result:
    """The end of a command that keeps its directory, with where it began."""
    operation = planned.operation
    if not isinstance(operation, Exec) or not operation.keep_cwd:
        return result
    return replace(result, detail={**result.detail, BEGAN_IN: operation.cwd})


def moves(call: ToolCall, result: Result) -> list[NewEvent]:
    """The event of a command whose end changed the directory of the next one."""
    began, detail = result.detail.get(BEGAN_IN), result.detail
    if began is None:
        return []
    unknown = WORKSPACE_DIRECTORY if "cwd_outside" in detail or "cwd_lost" in detail else began
    cwd = str(detail.get("cwd", unknown))
    if cwd == began:
        return []
    params, spec = call.params, call.spec
    event = ShellMoved(params.turn_id, params.agent, spec.effect_id, cwd)
    key = tool_event_key(params.turn_id, params.agent, spec.position, "moved")
    return [NewEvent(key, event, params.turn_id)]
