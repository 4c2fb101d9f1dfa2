"""The turn that is disturbed: four model calls and ten tool calls, each with a trace of its own outside the ledger."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOURNAL = "journal.txt"
"""The file of the workspace to which every command appends its own line: what really ran, told by nobody of ours."""

GATE = "gate"
"""A held command runs until this file of the workspace exists."""

REQUEST = "Count, note it, and count again."
ROUNDS = 4
MODELS = tuple(f"model.{number}" for number in range(1, ROUNDS + 1))

_CALLS: dict[str, tuple[str, Any]] = {
    "tool.1.0": ("bash", "a"),
    "tool.1.1": ("write_file", "first.txt"),
    "tool.1.2": ("bash", "b"),
    "tool.2.0": ("edit_file", "first.txt"),
    "tool.2.1": ("bash", "c"),
    "tool.2.2": ("write_file", "second.txt"),
    "tool.3.0": ("bash", "d"),
    "tool.3.1": ("edit_file", "second.txt"),
    "tool.3.2": ("bash", "e"),
    "tool.3.3": ("bash", "f"),
}
TOOLS = tuple(_CALLS)
COMMANDS = {position: line for position, (tool, line) in _CALLS.items() if tool == "bash"}
"""Positions of the commands, with the line each one appends to the journal when it begins."""

EDITS = {position: name for position, (tool, name) in _CALLS.items() if tool == "edit_file"}
"""Positions of the calls that the test processes declare to be at most once, with the file each one doubles."""

_WRITTEN = "counted\n"
_SAY = (
    "I count a little and take a note of it, which takes a moment.",
    "The note is there; now I double what it says and count on.",
    "There is more to count, and the second note is to be doubled too.",
    "Everything is counted, noted and doubled; that was all of it.",
)


def script(held: str = "") -> str:
    """The scripted provider's answers (JSON is YAML). The command at the position `held` waits for its gate."""
    return json.dumps({"responses": [_response(round_, held) for round_ in range(1, ROUNDS + 1)]})


def _response(round_: int, held: str) -> dict[str, object]:
    calls = [_call(position, held) for position in TOOLS if position.startswith(f"tool.{round_}.")]
    usage = {"input": 100 * round_, "output": 10}
    said: dict[str, object] = {"text": _SAY[round_ - 1], "delay": 0.015, "usage": usage}
    return said | {"calls": calls} if calls else said


def _call(position: str, held: str) -> dict[str, object]:
    tool, name = _CALLS[position]
    if tool == "bash":
        wait = f"until [ -e {GATE} ]; do sleep 0.05; done; " if position == held else ""
        return {"tool": tool, "args": {"command": f"echo {name} >> {JOURNAL}; {wait}wc -l < {JOURNAL}"}}
    if tool == "write_file":
        return {"tool": tool, "args": {"path": name, "content": _WRITTEN}}
    # Made twice, this edit would leave the word four times.
    return {"tool": tool, "args": {"path": name, "old": "counted", "new": "counted counted", "all": True}}


@dataclass(frozen=True)
class Traces:
    """What one run of the turn left in the workspace."""

    journal: tuple[str, ...]
    files: dict[str, bytes]

    def edits(self, position: str) -> float:
        """How often the call at this position doubled its file; a fraction if the file is none of ours."""
        words = self.files.get(EDITS[position], b"").split().count(b"counted")
        return {1: 0, 2: 1, 4: 2, 8: 3}.get(words, 0.5)

    def faults(self, uncertain: set[str]) -> list[str]:
        """What ran twice or not at all. Calls whose outcome is recorded as unknown may not have run."""
        found = []
        if Counter(self.journal) != dict.fromkeys(COMMANDS.values(), 1):
            found.append(f"journal: {' '.join(self.journal)}: not each of {' '.join(COMMANDS.values())} once")
        for position in EDITS:
            times = self.edits(position)
            if times not in ((0, 1) if position in uncertain else (1,)):
                found.append(f"the at-most-once call {position} took effect {times:g} times")
        return found


def traces(workspace: Path) -> Traces:
    """What lies in the workspace now."""
    files = {path.name: path.read_bytes() for path in workspace.iterdir() if path.is_file()}
    journal = files.pop(JOURNAL, b"").decode().split()
    files.pop(GATE, None)
    return Traces(tuple(journal), files)


def reset(workspace: Path) -> None:
    """Make the workspace as it was before the turn."""
    workspace.mkdir(mode=0o755, exist_ok=True)
    for path in workspace.iterdir():
        path.unlink()


def open_gate(workspace: Path) -> None:
    """Let the held command end."""
    (workspace / GATE).touch()
