"""Calls of the tools for terminals and background commands."""

from __future__ import annotations

from dataclasses import replace

from activities.guard import Stopped, guarded
from activities.toolcalls import Result, ToolCall
from milepost.domain.effects import EffectState
from milepost.domain.errors import MilepostError, ProcessNotFound, SandboxLost
from milepost.domain.processes import ProcessRecord
from milepost.ports.sandbox import Spawn
from milepost.security.redaction import Redactor
from milepost.services.finishing import CANCELLED_TEXT
from milepost.services.processes import NewProcess, ProcessService
from milepost.services.shells import Shells
from milepost.tools import PlannedProcess, ToolOutput
from milepost.tools.processes import READ_BYTES, ProcessCall, render_list, render_output, render_started

LOST_TEXT = "Outcome unknown: the sandbox was lost while the call was running. Look at list_terminals."


def process_id_of(effect_id: str) -> str:
    """Of what a call starts: the same at every attempt."""
    return f"prc_{effect_id[:32]}"


class ProcessCalls:
    """Runs them for the agent that calls. It sees what agents of the Session started, not what people did."""

    def __init__(self, processes: ProcessService, shells: Shells, redactor: Redactor) -> None:
        self._processes = processes
        self._shells = shells
        self._redactor = redactor

    async def outcome(self, call: ToolCall, planned: PlannedProcess) -> Result:
        """How the call ended."""
        if await call.stop.heard():
            return Result(EffectState.CANCELLED, CANCELLED_TEXT, True, {})
        try:
            output = await guarded(self._run(call, planned.call), call.stop)
        except Stopped:
            return Result(EffectState.CANCELLED, CANCELLED_TEXT, True, {})
        except SandboxLost as error:
            return Result(EffectState.UNCERTAIN, LOST_TEXT, True, {"reason": error.message}, error_code=error.code)
        except MilepostError as error:
            return Result(EffectState.FAILED, str(error), True, {}, error_code=error.code)
        state = EffectState.FAILED if output.is_error else EffectState.SUCCEEDED
        detail = {**output.detail, "repaired": True} if planned.repaired else output.detail
        return Result(state, self._redactor.certain(output.text), output.is_error, detail)

    async def _run(self, call: ToolCall, asked: ProcessCall) -> ToolOutput:
        arguments = asked.arguments
        match asked.tool:
            case "bash_background" | "spawn_terminal":
                return render_started(await self._start(call, asked))
            case "list_terminals":
                records = await self._processes.of_session(call.context.session.session_id)
                return render_list([each for each in records if each.agent is not None])
        record = await self._own(call, str(arguments["id"]))
        session_id, process_id = record.session_id, record.process_id
        if asked.tool == "kill_terminal":
            await self._processes.end(session_id, process_id, f"agent:{call.params.agent}")
            return ToolOutput(f"{process_id} has ended.", False, {"process_id": process_id})
        offset, limit = int(arguments.get("offset", -READ_BYTES)), int(arguments.get("limit", READ_BYTES))
        if asked.tool == "write_terminal":
            offset = (await self._processes.read(session_id, process_id, 2**62, 1)).next_offset
            await self._processes.write(session_id, process_id, str(arguments["text"]).encode("utf-8"))
        found = await self._processes.read(session_id, process_id, offset, limit, asked.wait)
        return render_output(process_id, replace(found, data=self._redactor.data(found.data)))

    async def _start(self, call: ToolCall, asked: ProcessCall) -> ProcessRecord:
        command = asked.arguments.get("command")
        terminal = asked.size if asked.tool == "spawn_terminal" else None
        cwd = await self._shells.cwd(call.context.turn, call.params.agent)
        spec = Spawn(command, cwd, terminal, asked.lifetime)
        by = f"agent:{call.params.agent}"
        new = NewProcess(process_id_of(call.spec.effect_id), spec, by, call.params.turn_id)
        return await self._processes.start(call.context.session, new)

    async def _own(self, call: ToolCall, process_id: str) -> ProcessRecord:
        record = await self._processes.get(call.context.session.session_id, process_id)
        if record.agent is None:
            raise ProcessNotFound("A person opened this terminal; it is theirs alone.")
        return record
