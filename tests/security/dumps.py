"""Everything an instance leaves behind, as bytes by place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client

from tests.support.postgres_server import run_apart

MAX_WORKFLOWS = 100


def files(folder: Path, *, without: frozenset[str]) -> dict[str, bytes]:
    """Every file below a folder, by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in without:
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def postgres_rows(url: str) -> dict[str, bytes]:
    """Every row of every table."""
    return run_apart(_rows(url))  # type: ignore[no-any-return]


async def _rows(url: str) -> dict[str, bytes]:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        found = {}
        for (table,) in tables:
            rows = await connection.fetch(f'SELECT * FROM "{table}"')
            found[f"table {table}"] = b"\n".join(_cell(value) for row in rows for value in row.values())
        return found
    finally:
        await connection.close()


def _cell(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


async def histories(client: Client) -> dict[str, bytes]:
    """Of every workflow: the description, the history and both as the UI would show them."""
    found: dict[str, bytes] = {}
    async for workflow in client.list_workflows(limit=MAX_WORKFLOWS):
        request = DescribeWorkflowExecutionRequest(namespace=client.namespace)
        request.execution.workflow_id, request.execution.run_id = workflow.id, workflow.run_id
        described = await client.workflow_service.describe_workflow_execution(request)
        history = await client.get_workflow_handle(workflow.id, run_id=workflow.run_id).fetch_history()
        events = b"".join(event.SerializeToString() for event in history.events)
        found[f"workflow {workflow.id}"] = described.SerializeToString() + events + history.to_json().encode()
    return found
