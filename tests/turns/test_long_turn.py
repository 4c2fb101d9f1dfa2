"""A turn of many rounds goes on in new runs with what it had, also when its worker is lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.testing import WorkflowEnvironment

from milepost.domain.agents import AgentConfig
from milepost.domain.content import Content
from milepost.domain.events import ModelCalled, ToolFinished
from milepost.domain.messages import AssistantMessage, FinishReason, TextPart, ToolCallPart
from milepost.domain.tools import Approval
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from milepost.ledger.codec import decode_event
from milepost.ports.models import ModelCompleted, ModelHealth, ModelItem, ModelRequest
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from milepost.temporal.dev_server import executable
from tests.histories.bounds import MAX_EVENT_BYTES, event_sizes
from tests.support.databases import OpenLedger
from tests.support.sandboxes import MemorySandboxes
from tests.support.temporal import build_stack

ROUNDS = 30
LOST_IN = 14
SUGGESTED_AT = 100
"""Events of one run after which this server suggests to go on in a new one; by default it is 4,096."""


class ManyRounds:
    """Asks for a command in each of its rounds; one call of the round `LOST_IN` never gets an answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.hangs = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        number = request.call_number
        self.asked.append((number, len(request.messages)))
        if number == LOST_IN and not self.hangs.is_set():
            self.hangs.set()
            await asyncio.Event().wait()
        if number > ROUNDS:
            said = AssistantMessage((TextPart("done"),))
            yield ModelCompleted(said, FinishReason.STOP, Usage(1, 0, 1, 0), request.provider, request.model)
            return
        part = ToolCallPart(f"c{number}", "write_file", Content(f'{{"path": "{number}.txt", "content": "{number}"}}'))
        message = AssistantMessage((part,))
        yield ModelCompleted(message, FinishReason.TOOL_CALLS, Usage(1, 0, 1, 0), request.provider, request.model)

    async def check(self, provider: str) -> ModelHealth:
        return ModelHealth(provider, True, "")

    def validate(self, provider: str, model: str, script: str | None = None) -> None:
        return

    async def close(self) -> None:
        return


@pytest.fixture
async def forgetful() -> AsyncIterator[TemporalAddress]:
    """A real dev server that suggests a new run early."""
    environment = await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(executable()),
        dev_server_extra_args=["--dynamic-config-value", f"limit.historyCount.suggestContinueAsNew={SUGGESTED_AT}"],
    )
    async with environment:
        yield TemporalAddress(environment.client.service_client.config.target_host)


@pytest.mark.slow
async def test_many_rounds_go_on_in_new_runs(
    opened: OpenLedger, forgetful: TemporalAddress, sandboxes: MemorySandboxes, tmp_path: Path
) -> None:
    model = ManyRounds()
    approvals = {"write_file": Approval.ALLOW}
    agents = {"default": AgentConfig("default", "many", "many", approvals=approvals, max_rounds=ROUNDS + 1)}
    blobs = FileBlobStore(tmp_path / "blobs")
    stack = await build_stack(opened.ledger, opened.notifier, blobs, model, sandboxes, forgetful, agents=agents)
    session = await stack.open(tmp_path)
    async with asyncio.timeout(120):
        async with stack.worker(grace=0.05):
            turn_id = (await stack.send(session)).turn.turn_id
            await model.hangs.wait()
        async with stack.worker():
            turn = await stack.ended(turn_id, seconds=100)
    assert turn.state is TurnState.COMPLETED
    # Each round gets what the rounds before it said, whichever run and worker asks.
    assert [number for number, _ in model.asked] == sorted([*range(1, ROUNDS + 2), LOST_IN])
    assert [size for _, size in model.asked] == [2 * number - 1 for number, _ in model.asked]
    stored = await opened.ledger.read(lambda tx: tx.events.read_turn(session, turn_id))
    events = [decode_event(item.type, item.version, item.payload) for item in stored]
    assert [event.round for event in events if isinstance(event, ModelCalled)] == [*range(1, ROUNDS + 2)]
    assert [event.round for event in events if isinstance(event, ToolFinished)] == [*range(1, ROUNDS + 1)]
    runs = [run async for run in stack.client.list_workflows(f'WorkflowId = "{turn.workflow_id}"')]
    assert len(runs) >= 3
    for run in runs:
        history = await stack.client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        assert len(history.events) < 2 * SUGGESTED_AT
        assert max(size for _, size in event_sizes(history)) < MAX_EVENT_BYTES
        goes_on = [
            event.workflow_execution_continued_as_new_event_attributes.input.ByteSize()
            for event in history.events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
        ]
        assert all(size < 2_048 for size in goes_on)
