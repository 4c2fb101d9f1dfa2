"""Workflow code that is executed once for all runs of a process imports nothing that could differ between them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from workers.runtime import SHARED_WORKFLOW_CODE

ALLOWED = (
    "__future__",
    "asyncio",
    "collections.abc",
    "dataclasses",
    "typing",
    "temporalio",
    "milepost.contracts",
    "milepost.domain",
    "milepost.engine",
    "milepost.ledger",
    *SHARED_WORKFLOW_CODE,
)
LEAVES = frozenset({"run", "new_event_loop", "to_thread", "run_coroutine_threadsafe", "open_connection"})
"""What `asyncio` has that leaves the workflow's own loop."""

DENIED = frozenset({"open", "exec", "eval", "input", "hash", "id"})


def foreign(source: str) -> list[str]:
    """Imports and calls that shared workflow code must not have."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        found += [name for name in names if not any(name == one or name.startswith(f"{one}.") for one in ALLOWED)]
        leaves = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "asyncio" and node.attr in LEAVES
        denied = isinstance(node, ast.Call) and getattr(node.func, "id", "") in DENIED
        if leaves or denied or isinstance(node, ast.Global):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("module", SHARED_WORKFLOW_CODE)
def test_shared_workflow_code_is_orchestration_only(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    assert foreign(Path(spec.origin).read_text()) == []


@pytest.mark.parametrize(
    "planted",
    [
        "import time",
        "from random import random",
        "from milepost.services import turns",
        "import asyncio\nasyncio.to_thread(print)",
        "open('x')",
        "def f():\n    global g\n    g = 1",
    ],
)
def test_what_differs_between_runs_is_found(planted: str) -> None:
    assert foreign(planted)
