"""What a tool is, and the one table of the built-in tools' policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from milepost.domain.effects import EffectClass


class Parallel(StrEnum):
    """How calls of one model response may overlap: `safe` together, `ordered` in call order, `exclusive` alone."""

    SAFE = "safe"
    ORDERED = "ordered"
    EXCLUSIVE = "exclusive"


class Approval(StrEnum):
    """Whether a person must agree before the tool runs, where no policy rule decides."""

    ALLOW = "allow"
    ASK = "ask"


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    effect_class: EffectClass
    parallel: Parallel
    approval: Approval = Approval.ALLOW


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as it is offered to a model. `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CustomTool:
    """What a turn records of a tool of the user's own beside its definition. `timeout` is seconds."""

    name: str
    policy: ToolPolicy
    timeout: float


PROCESS_TOOLS = frozenset(
    {"bash_background", "spawn_terminal", "list_terminals", "read_terminal", "write_terminal", "kill_terminal"}
)
"""Built-in tools for terminals and background commands of the sandbox."""

SHELL = "bash"
SHELL_TOOLS = frozenset({"bash_background", "spawn_terminal", "write_terminal"})
"""Built-in tools that run whatever a shell can: what a person refused or wants to be asked about for `bash` holds for
them as well, unless they are named themselves."""

READ_ATTACHMENT = "read_attachment"
"""Offered only in Sessions that have attachments."""

BUILTIN_TOOL_POLICIES: dict[str, ToolPolicy] = {
    "read_file": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "list_dir": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "grep": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "glob": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "write_file": ToolPolicy(EffectClass.IDEMPOTENT, Parallel.ORDERED),
    "edit_file": ToolPolicy(EffectClass.ATTACHABLE, Parallel.ORDERED),
    "git_status": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "git_diff": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "bash": ToolPolicy(EffectClass.ATTACHABLE, Parallel.EXCLUSIVE),
    "bash_background": ToolPolicy(EffectClass.KEYED, Parallel.EXCLUSIVE),
    "spawn_terminal": ToolPolicy(EffectClass.KEYED, Parallel.ORDERED),
    "list_terminals": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "read_terminal": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "write_terminal": ToolPolicy(EffectClass.AT_MOST_ONCE, Parallel.EXCLUSIVE),
    "kill_terminal": ToolPolicy(EffectClass.IDEMPOTENT, Parallel.ORDERED),
    "read_output": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "search_output": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "core_memory_append": ToolPolicy(EffectClass.INTERNAL_STATE, Parallel.ORDERED),
    "core_memory_replace": ToolPolicy(EffectClass.INTERNAL_STATE, Parallel.ORDERED),
    "core_memory_set": ToolPolicy(EffectClass.INTERNAL_STATE, Parallel.ORDERED),
    "recall_search": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "recall_timeframe": ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
    "forget": ToolPolicy(EffectClass.INTERNAL_STATE, Parallel.ORDERED),
    READ_ATTACHMENT: ToolPolicy(EffectClass.OBSERVE, Parallel.SAFE),
}
"""Every built-in tool's effect class, parallel policy and default approval; documented in docs/tools.md.

None asks by default: they run inside the sandbox on the workspace the person chose, or on what Milepost keeps of the
Session itself.
"""

EDITING_TOOLS = frozenset({"core_memory_append", "core_memory_replace", "core_memory_set"})
"""Built-in tools that change core blocks; offered to agents that have one they may change."""

MEMORY_TOOLS = EDITING_TOOLS | {"recall_search", "recall_timeframe", "forget"}
"""Built-in tools that work on the agent's memory; offered to agents that have one."""

UNSANDBOXED_TOOLS = MEMORY_TOOLS | {"read_output", "search_output", READ_ATTACHMENT}
"""Built-in tools that work on what Milepost keeps of the Session. They need no sandbox and run where model calls do."""

SANDBOXED_OPERATIONS = frozenset(f"tool:{name}" for name in BUILTIN_TOOL_POLICIES if name not in UNSANDBOXED_TOOLS)
"""Operations of effects that are calls in the Session's sandbox."""

ANY_TOOL = "*"


def tool_approval(tool: str, chosen: Mapping[str, Approval], own: Approval = Approval.ASK) -> Approval:
    """An agent's approval policy for a tool: its own entry, the one for any tool, else the tool's default.

    `own` is the default of a tool that is not built in.
    """
    if tool in SHELL_TOOLS and tool not in chosen and SHELL in chosen:
        return chosen[SHELL]
    policy = BUILTIN_TOOL_POLICIES.get(tool)
    return chosen.get(tool, chosen.get(ANY_TOOL, policy.approval if policy else own))


MAX_CALLS_PER_RESPONSE = 128
"""A response with more tool calls is rejected before hooks or dispatch."""

MAX_TOOL_NAME_BYTES = 4 * 1024
MAX_TOOL_ARGUMENTS_BYTES = 16 * 1024 * 1024
MAX_ERROR_TEXT_BYTES = 8 * 1024
