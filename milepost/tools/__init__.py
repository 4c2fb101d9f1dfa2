"""Tools: what a model is offered, what a call means, what it gets back. Pure; nothing here does I/O."""

from milepost.tools.definitions import definitions
from milepost.tools.planning import (
    Planned,
    PlannedCustom,
    PlannedInternal,
    PlannedProcess,
    PlannedTool,
    plan,
    plan_custom,
)
from milepost.tools.rendering import ToolOutput, render, render_answer

__all__ = [
    "Planned",
    "PlannedCustom",
    "PlannedInternal",
    "PlannedProcess",
    "PlannedTool",
    "ToolOutput",
    "definitions",
    "plan",
    "plan_custom",
    "render",
    "render_answer",
]
