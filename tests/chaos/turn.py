"""The turn that every scenario runs: three model calls, four tool calls, each of which leaves its own trace."""

from __future__ import annotations

import json
from pathlib import Path

from tests.chaos.points import JOURNAL

GATE = "gate"
"""The last command runs until this file of the workspace exists, and a second longer."""

NOTES = "notes.txt"
FIRST, LAST = "one", "two"
"""What the commands write to the journal when they begin."""

WRITE, EDIT, BASH = "tool.1.1", "tool.2.0", "tool.2.1"
"""Positions of calls: an idempotent one, and two that may run once only."""

MODEL = "model.2"
"""Position of a model call whose answer takes a while."""

REQUEST = "Count, note it, and count again."


def script() -> str:
    """The scripted provider's answers (JSON is YAML)."""
    return json.dumps({"responses": [_begin(), _go_on(), {"text": "Counted to two and noted it."}]})


def _begin() -> dict[str, object]:
    return {
        "text": "I count and take a note.",
        "calls": [
            {"tool": "bash", "args": {"command": f"echo {FIRST} >> {JOURNAL}; wc -l < {JOURNAL}"}},
            {"tool": "write_file", "args": {"path": NOTES, "content": "counted 1\n"}},
        ],
    }


def _go_on() -> dict[str, object]:
    wait = f"until [ -e {GATE} ]; do sleep 0.05; done; sleep 1"
    return {
        "text": "The note is there; now I double it, and count a second time, which takes a moment longer.",
        "reasoning": "Doubling shows whether an edit was made once.",
        "delay": 0.02,
        "calls": [
            # Made twice, this edit would leave the words four times.
            {"tool": "edit_file", "args": {"path": NOTES, "old": "counted", "new": "counted counted", "all": True}},
            {"tool": "bash", "args": {"command": f"echo {LAST} >> {JOURNAL}; {wait}; wc -l < {JOURNAL}"}},
        ],
    }


def prepare(workspace: Path, *, gate: bool) -> None:
    """Make the workspace; without its gate the last command does not end."""
    workspace.mkdir(mode=0o755)
    if gate:
        open_gate(workspace)


def open_gate(workspace: Path) -> None:
    """Let the last command end."""
    (workspace / GATE).touch()


def files(workspace: Path) -> dict[str, bytes]:
    """What the turn left in the workspace."""
    return {path.name: path.read_bytes() for path in sorted(workspace.iterdir()) if path.name != GATE}
