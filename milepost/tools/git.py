"""The tools by which agents look at the repository. What changes it they do with `bash`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from milepost.domain.tools import ToolDefinition
from milepost.engine import git
from milepost.ports.sandbox import Exec

GIT_SECONDS = 60.0
GIT_ARGUMENT_BYTES = {("git_diff", "from"): 1024, ("git_diff", "to"): 1024}
_NAME = {"type": "string", "minLength": 1, "pattern": r"^[^-\s][^\x00-\x1f]*$"}

GIT_DEFINITIONS = (
    ToolDefinition(
        "git_status",
        "Show the branch of the workspace's Git repository, and the files that are not as in the last commit. "
        "Two letters tell of the index and of the file: M modified, A added, D deleted, R renamed, U conflict, "
        "?? unknown.",
        {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    ),
    ToolDefinition(
        "git_diff",
        "Show what has changed as a patch: files against the index, with 'staged' the index against the last commit, "
        "with 'from' files against that commit (up to 'to' if it is given).",
        {
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "Only this file or folder."},
                "staged": {"type": "boolean", "description": "What is staged (default false)."},
                "from": {**_NAME, "description": "A branch or commit to compare with."},
                "to": {**_NAME, "description": "Compare 'from' with this one instead of the files."},
            },
            "required": [],
            "additionalProperties": False,
        },
    ),
)


def _status(_: dict[str, Any]) -> Exec:
    return Exec(
        git.command("status", "--short", "--branch", "--untracked-files=all", looking=True), timeout=GIT_SECONDS
    )


def _diff(arguments: dict[str, Any]) -> Exec:
    compared = [arguments[name] for name in ("from", "to") if name in arguments]
    if arguments.get("staged"):
        compared = ["--cached", *compared[:1]]
    paths = [arguments["path"]] if "path" in arguments else []
    return Exec(git.command(*git.DIFF, *compared, "--", *paths, looking=True), timeout=GIT_SECONDS)


GIT_OPERATIONS: dict[str, Callable[[dict[str, Any]], Exec]] = {"git_status": _status, "git_diff": _diff}
