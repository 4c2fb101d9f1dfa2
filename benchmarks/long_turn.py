"""One turn of many tool rounds through the real workflow: runs, sizes in Temporal, and what a round costs.

Usage: python -m benchmarks.long_turn [--rounds N] [--output BYTES] [--json]

The model and the sandbox answer at once and never the same twice, so what is measured is the product's own cost. Each
round is one model call and one command that prints `--output` characters. `round` is the time from one model call to
the next, by parts of a tenth of the turn; the request's bytes grow by nature. Bounds: handover and every event under
64 KiB, fewer than 10,240 events in a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from benchmarks.turns import InstantModel, InstantSandbox, open_bench
from milepost.domain.agents import AgentConfig
from milepost.domain.content import Content
from milepost.domain.messages import AssistantMessage, FinishReason, TextPart, ToolCallPart
from milepost.domain.tools import Approval
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from milepost.ports.models import ModelCompleted, ModelItem, ModelRequest
from milepost.ports.sandbox import OnOutput, Operation, Outcome
from milepost.temporal.exit import clean_exit
from tests.support.driven import log_text

MAX_ROUNDS = 10_000
LIMIT_SECONDS = 3_600
MAX_BYTES = 64 * 1024
MAX_EVENTS = 10_240
PARTS = 10


class ManyCalls(InstantModel):
    """Asks for one command in each of `rounds` rounds; notes when it was asked, and how much."""

    def __init__(self, rounds: int) -> None:
        super().__init__(1)
        self.rounds = rounds
        self.asked: list[tuple[float, int]] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelItem, None]:
        size = sum(len(message.text.text) for message in request.messages if message.kind != "assistant")
        self.asked.append((time.perf_counter(), size))
        number = request.call_number
        if number > self.rounds:
            message = AssistantMessage((TextPart("done"),))
            yield ModelCompleted(message, FinishReason.STOP, Usage(10, 0, 1, 0), request.provider, request.model)
            return
        part = ToolCallPart(f"call-{number}", "bash", Content(f'{{"command": "make target-{number}"}}'))
        message = AssistantMessage((part,))
        yield ModelCompleted(message, FinishReason.TOOL_CALLS, Usage(10, 0, 1, 0), request.provider, request.model)


class Printing(InstantSandbox):
    def __init__(self, size: int) -> None:
        self._size = size
        self._chosen = random.Random(1)

    async def perform(
        self, effect_id: str, operation: Operation, on_output: OnOutput | None = None, *, boot: str | None = None
    ) -> Outcome:
        return Outcome(exit_code=0, stdout=log_text(self._chosen, self._size).encode())


async def measure(rounds: int, output: int, folder: Path) -> dict[str, Any]:
    model = ManyCalls(rounds)
    async with AsyncExitStack() as stack:
        agent = AgentConfig("default", "instant", "instant", approvals={"bash": Approval.ALLOW}, max_rounds=rounds + 1)
        bench = await open_bench(stack, folder, model, Printing(output), agent)
        session = await bench.session()
        await bench.turn(session)
        (turn,) = await bench.parts.ledger.read(lambda tx: tx.turns.page(session, before_number=None, limit=1))
        histories = await _histories(bench.client, turn.workflow_id)
    times = [(after - before) * 1000 for (before, _), (after, _) in zip(model.asked, model.asked[1:], strict=False)]
    part = max(1, len(times) // PARTS)
    largest = max(event.ByteSize() for history in histories for event in history)
    handovers = [
        event.workflow_execution_continued_as_new_event_attributes.input.ByteSize()
        for history in histories
        for event in history
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
    ]
    return {
        "state": turn.state.value,
        "model calls": len(model.asked),
        "runs": len(histories),
        "most events in a run": max(len(history) for history in histories),
        "largest event, bytes": largest,
        "largest handover, bytes": max(handovers, default=0),
        "last request, MB": round(model.asked[-1][1] / 1e6, 2),
        "seconds": round(model.asked[-1][0] - model.asked[0][0], 1),
        "round p50 ms, by tenths": [
            round(statistics.median(times[at : at + part]), 1) for at in range(0, part * PARTS, part)
        ],
        "within bounds": turn.state is TurnState.COMPLETED
        and largest < MAX_BYTES
        and max(handovers, default=0) < MAX_BYTES
        and all(len(history) < MAX_EVENTS for history in histories),
    }


async def _histories(client: Client, workflow_id: str) -> list[list[Any]]:
    """The events of every run of the turn, oldest run first."""
    found = []
    run: str | None = None
    description = await client.get_workflow_handle(workflow_id).describe()
    run = description.raw_description.workflow_execution_info.first_run_id or description.run_id
    while run:
        history = await client.get_workflow_handle(workflow_id, run_id=run).fetch_history()
        found.append(list(history.events))
        last = history.events[-1]
        run = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=1_000, help=f"at most {MAX_ROUNDS}")
    parser.add_argument("--output", type=int, default=1_000, help="characters that each command prints")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds, output = min(max(options.rounds, PARTS), MAX_ROUNDS), min(max(options.output, 1), 100_000)
    with tempfile.TemporaryDirectory(prefix="milepost-long-turn-") as folder:
        async with asyncio.timeout(LIMIT_SECONDS):
            found = await measure(rounds, output, Path(folder))
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    asyncio.run(main())
    clean_exit(0)
