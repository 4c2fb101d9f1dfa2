"""Everything an instance leaves behind, as bytes by place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client

from milepost.domain.effects import Effect
from milepost.ports.ledger import LedgerTx
from milepost.storage import open_ledger, open_notifier
from milepost.storage.blob_files import BlobFile, blob_files
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


def unpacked(url: str, blobs: Path) -> dict[str, bytes]:
    """What the ledger and its blobs say, which on disk is compressed: in it a secret could hide from every search."""
    found = {f"blobs, plain: {blob.digest}": _plain(blob) for blob in blob_files(blobs)}
    return found | run_apart(_said(url))


def _plain(blob: BlobFile) -> bytes:
    with blob.opened() as reader:
        return b"".join(reader.pieces(1024 * 1024))


async def _said(url: str) -> dict[str, bytes]:
    notifier = await open_notifier(url)
    ledger = await open_ledger(url, notifier)

    def body(tx: LedgerTx) -> dict[str, bytes]:
        sessions = [session.session_id for session in tx.sessions.page(status=None, before=None, limit=200)]
        streams = [*sessions, f"instance/{ledger.instance_id}"]
        events = [item for stream in streams for item in tx.events.read(stream, limit=100_000)]
        effects = [effect for session in sessions for effect in _effects(tx, session)]
        turns = [turn for session in sessions for turn in tx.turns.page(session, before_number=None, limit=200)]
        return {
            "ledger: events": b"\n".join(item.payload for item in events),
            "ledger: effects": "\n".join(map(repr, effects)).encode("utf-8", "surrogatepass"),
            "ledger: results": b"\n".join(effect.result or b"" for effect in effects),
            "ledger: turns": "\n".join(map(repr, turns)).encode("utf-8", "surrogatepass"),
        }

    try:
        return await ledger.read(body)
    finally:
        await ledger.close()
        await notifier.close()


def _effects(tx: LedgerTx, session_id: str) -> list[Effect]:
    return tx.effects.page(session_id, turn_id=None, state=None, limit=10_000)


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
