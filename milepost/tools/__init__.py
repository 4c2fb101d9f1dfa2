"""The built-in tools: what a model is offered, what a call means, what it gets back. Pure; nothing here does I/O."""

from milepost.tools.definitions import definitions
from milepost.tools.planning import PlannedTool, plan
from milepost.tools.rendering import ToolOutput, render

__all__ = ["PlannedTool", "ToolOutput", "definitions", "plan", "render"]
