"""Tools of the user's own: the port that runs them, and what a Python package that brings one has to provide.

A package announces a tool under the entry-point group `milepost.tools`; the entry point names a `Tool`. It needs to
import nothing of Milepost but this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from milepost.domain.effects import EffectClass
from milepost.domain.errors import MilepostError, OutcomeUnknown, ToolFailed, ToolUnavailable
from milepost.domain.tools import Approval, CustomTool, Parallel, ToolDefinition


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool. `arguments` fit the tool's schema.

    `idempotency_key` is the same whenever this logical call is made again: hand it to a peer that can deduplicate.
    `cancelled` tells a function in a thread that nobody waits for it any more (stop, timeout).
    """

    tool: str
    arguments: Mapping[str, Any]
    idempotency_key: str
    session_id: str
    turn_id: str
    agent: str
    call_id: str
    cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call brought. `text` goes to the model; `detail` is recorded beside it (numbers and short texts)."""

    text: str
    is_error: bool = False
    detail: Mapping[str, int | str] = field(default_factory=dict)


Run = Callable[[Call], "str | Answer | Awaitable[str | Answer]"]
"""Does the call. A coroutine function runs on the event loop and must not block it; any other one in a thread."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A Python tool. `parameters` is a JSON Schema object; `timeout` is seconds.

    `effect` says what may happen when the worker dies during a call: `observe` and `idempotent` ones are made again,
    `keyed` ones too (with the same `Call.idempotency_key`), `at_most_once` ones never.
    """

    description: str
    parameters: Mapping[str, Any]
    run: Run
    effect: EffectClass = EffectClass.AT_MOST_ONCE
    parallel: Parallel = Parallel.ORDERED
    approval: Approval = Approval.ASK
    timeout: float = 60.0


class CustomTools(Protocol):
    """All configured tools of the user's own."""

    def offered(self, names: Sequence[str], agent: str = "") -> list[tuple[ToolDefinition, CustomTool]]:
        """What a turn of an agent records of these tools, in the order of their names.

        Raises ToolUnavailable: one of them is not configured here, or cannot be loaded.
        """

    async def run(self, call: Call, seconds: float) -> Answer:
        """Make the call once, within `seconds`. Cancelling the awaiting task closes its connection.

        Raises:
            ToolUnavailable: there is no such tool here; nothing was done.
            ToolFailed: it ended with an error.
            OutcomeUnknown: it was handed over, and whether it took effect cannot be said.
        """

    def problems(self) -> dict[str, MilepostError]:
        """Tools that cannot be used, by name."""


class NoCustomTools:
    """`CustomTools` of an instance that has none."""

    def offered(self, names: Sequence[str], agent: str = "") -> list[tuple[ToolDefinition, CustomTool]]:
        for name in names:
            raise ToolUnavailable(f"The configuration has no tool '{name}'.", fix=f"Add it under tools.{name}.")
        return []

    async def run(self, call: Call, seconds: float) -> Answer:
        raise ToolUnavailable(f"The configuration has no tool '{call.tool}'.")

    def problems(self) -> dict[str, MilepostError]:
        return {}


__all__ = [
    "Answer",
    "Approval",
    "Call",
    "CustomTools",
    "EffectClass",
    "NoCustomTools",
    "OutcomeUnknown",
    "Parallel",
    "Run",
    "Tool",
    "ToolFailed",
]
