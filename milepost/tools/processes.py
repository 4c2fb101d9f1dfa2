"""The tools for terminals and background commands: what a model is offered and what it gets back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from milepost.domain.processes import ProcessKind, ProcessRecord
from milepost.domain.tools import ToolDefinition
from milepost.ports.sandbox import MAX_INPUT_BYTES, MAX_LIFETIME, ProcessOutput, TerminalSize
from milepost.tools.rendering import ToolOutput, plain

PROCESS_SECONDS = 60.0
LIFETIME_SECONDS = 3600
READ_BYTES = 16 * 1024
READ_BYTES_MAXIMUM = 60 * 1024
WAIT_MAXIMUM = 30
WRITE_WAIT_SECONDS = 1
SHOWN_COMMAND = 200

PROCESS_ARGUMENT_BYTES = {
    ("bash_background", "command"): 64 * 1024,
    ("spawn_terminal", "command"): 64 * 1024,
    ("read_terminal", "id"): 64,
    ("write_terminal", "id"): 64,
    ("write_terminal", "text"): MAX_INPUT_BYTES,
    ("kill_terminal", "id"): 64,
}
"""Largest accepted size of an argument, in UTF-8 bytes."""


@dataclass(frozen=True, slots=True)
class ProcessCall:
    """A checked call of one of these tools."""

    tool: str
    arguments: dict[str, Any]

    @property
    def size(self) -> TerminalSize:
        return TerminalSize(int(self.arguments.get("rows", 24)), int(self.arguments.get("columns", 80)))

    @property
    def lifetime(self) -> float:
        return float(self.arguments.get("lifetime", LIFETIME_SECONDS))

    @property
    def wait(self) -> float:
        """Seconds."""
        return float(self.arguments.get("wait", WRITE_WAIT_SECONDS if self.tool == "write_terminal" else 0))


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _integer(text: str, minimum: int, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum, "description": text}


_COMMAND = {"type": "string", "minLength": 1}
_ID = {"type": "string", "pattern": "^prc_[0-9a-f]{32}$", "description": "As the tool that started it said."}
_LIFETIME = _integer(f"Seconds after which it is ended (default {LIFETIME_SECONDS}).", 1, int(MAX_LIFETIME))
_WAIT = _integer("Seconds to wait for new output, if there is none yet.", 0, WAIT_MAXIMUM)

PROCESS_DEFINITIONS = (
    ToolDefinition(
        "bash_background",
        "Start a shell command that runs on after this call, like a server or a long build. It has no input and no "
        "terminal. Returns an id at once; read its output with read_terminal, end it with kill_terminal.",
        _object({"command": _COMMAND, "lifetime": _LIFETIME}, "command"),
    ),
    ToolDefinition(
        "spawn_terminal",
        "Open a terminal for a program that needs one: a shell, a debugger, a prompt. Without a command it is a shell. "
        "Returns an id; type with write_terminal, see what it shows with read_terminal, end it with kill_terminal.",
        _object(
            {
                "command": {**_COMMAND, "description": "What to run in it (default: a shell)."},
                "rows": _integer("Height (default 24).", 1, 200),
                "columns": _integer("Width (default 80).", 1, 500),
                "lifetime": _LIFETIME,
            }
        ),
    ),
    ToolDefinition(
        "list_terminals",
        "List the terminals and background commands that agents of this conversation started, newest first.",
        _object({}),
    ),
    ToolDefinition(
        "read_terminal",
        "Read output of a terminal or background command: its last part, or from an offset on. The last line tells "
        "whether it still runs and the offset to read on from.",
        _object(
            {
                "id": _ID,
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "First byte, from 0 (default: near the end).",
                },
                "limit": _integer(f"Number of bytes (default {READ_BYTES}).", 1, READ_BYTES_MAXIMUM),
                "wait": _WAIT,
            },
            "id",
        ),
    ),
    ToolDefinition(
        "write_terminal",
        "Type into a terminal. The text is typed as it is: end a line with \\n; \\u0003 is Ctrl-C, \\u0004 Ctrl-D, "
        "\\u001b Escape. Returns what the terminal then says within 'wait' seconds (default 1).",
        _object({"id": _ID, "text": {"type": "string", "minLength": 1}, "wait": _WAIT}, "id", "text"),
    ),
    ToolDefinition(
        "kill_terminal",
        "End a terminal or background command with all processes it started.",
        _object({"id": _ID}, "id"),
    ),
)


def describe(record: ProcessRecord) -> str:
    """One line: what it is, and how it is."""
    command = "a shell" if record.command is None else record.command.replace("\n", " ")[:SHOWN_COMMAND]
    what = "terminal" if record.kind is ProcessKind.TERMINAL else "background"
    return f"{record.process_id} {what}, {_state(record.running, record.exit_code, record.ended_by)}: {command}"


def _state(running: bool, exit_code: int | None, ended_by: str | None) -> str:
    if running:
        return "running"
    if exit_code is not None:
        return f"exit code {exit_code}"
    return {"ended": "ended by request", "lifetime": "ended at the end of its lifetime", "lost": "lost"}.get(
        ended_by or "", "ended"
    )


def render_started(record: ProcessRecord) -> ToolOutput:
    """Of `bash_background` and `spawn_terminal`."""
    detail = {"process_id": record.process_id}
    if not record.running:
        return ToolOutput(describe(record), record.exit_code != 0, detail)
    how = "read_terminal reads its output" if record.kind is ProcessKind.BACKGROUND else "write_terminal types into it"
    return ToolOutput(f"Started {record.process_id} in {record.cwd}; {how}, kill_terminal ends it.", False, detail)


def render_list(records: Sequence[ProcessRecord]) -> ToolOutput:
    """Of `list_terminals`."""
    return ToolOutput("\n".join(describe(each) for each in records) or "[none]", False, {"count": len(records)})


def render_output(process_id: str, found: ProcessOutput) -> ToolOutput:
    """Of `read_terminal` and `write_terminal`: text without terminal control, and how to go on."""
    text = plain(found.data.decode("utf-8", "replace")).rstrip("\n")
    notes = [f"[{found.gap} bytes before this are not kept any more]"] if found.gap else []
    state = _state(found.running, found.exit_code, found.ended_by)
    place = f"bytes {found.offset}-{found.next_offset - 1} of {found.bytes_out}" if found.data else "no new output"
    notes.append(f"[{process_id}: {place}; {state}; read on with offset={found.next_offset}]")
    detail = {"process_id": process_id, "offset": found.offset, "next_offset": found.next_offset}
    return ToolOutput("\n".join([*([text] if text else []), *notes]), False, {**detail, "running": found.running})
