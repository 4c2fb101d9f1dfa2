"""Built-in tools that need no sandbox: they work on what Milepost keeps of the Session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from activities.guard import Stopped, guarded
from activities.toolcalls import Result, ToolCall
from milepost.domain.effects import EffectState
from milepost.domain.errors import MilepostError
from milepost.domain.tools import READ_ATTACHMENT
from milepost.services.attached_texts import AttachmentReader, Piece
from milepost.services.finishing import CANCELLED_TEXT
from milepost.services.outputs import OutputReader, Place
from milepost.tools import PlannedInternal, ToolOutput
from milepost.tools.definitions import ATTACHMENT_CHARACTERS, OUTPUT_CHARACTERS
from milepost.tools.outputs import parse_ref, render_matches, render_slice

InternalTool = Callable[[ToolCall, dict[str, Any]], Awaitable[ToolOutput]]
"""(call, checked arguments) -> what the model is told. A MilepostError that it raises is an error result."""


class InternalCalls:
    """Runs calls of the tools it is given, by name."""

    def __init__(self, tools: Mapping[str, InternalTool]) -> None:
        self._tools = dict(tools)

    async def outcome(self, call: ToolCall, planned: PlannedInternal) -> Result:
        """How the call ended."""
        if await call.stop.heard():
            return Result(EffectState.CANCELLED, CANCELLED_TEXT, True, {})
        try:
            output = await guarded(_run(self._tools[call.part.tool], call, planned), call.stop)
        except Stopped:
            return Result(EffectState.CANCELLED, CANCELLED_TEXT, True, {})
        except MilepostError as error:
            return Result(EffectState.FAILED, str(error), True, {}, error_code=error.code)
        state = EffectState.FAILED if output.is_error else EffectState.SUCCEEDED
        detail = {**output.detail, "repaired": True} if planned.repaired else output.detail
        return Result(state, output.text, output.is_error, detail, output.full_text)


async def _run(tool: InternalTool, call: ToolCall, planned: PlannedInternal) -> ToolOutput:
    return await tool(call, planned.arguments)


def output_tools(reader: OutputReader) -> dict[str, InternalTool]:
    """`read_output` and `search_output`."""

    async def read(call: ToolCall, arguments: dict[str, Any]) -> ToolOutput:
        ref = parse_ref(arguments["ref"])
        offset, limit = int(arguments.get("offset", 0)), int(arguments.get("limit", OUTPUT_CHARACTERS))
        return render_slice(await reader.read(_place(call), ref), offset, limit)

    async def search(call: ToolCall, arguments: dict[str, Any]) -> ToolOutput:
        ref = parse_ref(arguments["ref"]) if "ref" in arguments else None
        return render_matches(await reader.search(_place(call), arguments["query"], ref), arguments["query"])

    return {"read_output": read, "search_output": search}


def attachment_tools(reader: AttachmentReader) -> dict[str, InternalTool]:
    """`read_attachment`."""

    async def read(call: ToolCall, arguments: dict[str, Any]) -> ToolOutput:
        offset, limit = int(arguments.get("offset", 0)), int(arguments.get("limit", ATTACHMENT_CHARACTERS))
        return render_attachment(await reader.read(call.params.turn_id, arguments["name"], offset, limit))

    return {READ_ATTACHMENT: read}


def render_attachment(piece: Piece) -> ToolOutput:
    """A part of a file's text as a model gets it, and where to read on."""
    more = f"read on from offset {piece.end}" if piece.end < piece.size else "this is the end"
    note = f" {piece.note}" if piece.note and piece.end >= piece.size else ""
    head = f"[{piece.name!r}, characters {piece.offset}-{piece.end - 1} of {piece.size}; {more}.{note}]"
    return ToolOutput(f"{piece.text}\n{head}", False, {"offset": piece.offset, "end": piece.end, "size": piece.size})


def _place(call: ToolCall) -> Place:
    turn = call.context.turn
    return Place(turn.session_id, call.params.agent, turn.number)
