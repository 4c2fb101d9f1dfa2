"""Activities under the contracts' names, without ledger, provider or sandbox: what they do is given by the test."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from milepost.contracts.activities import (
    CALL_MODEL,
    FINISH_TURN,
    PREPARE_TURN,
    RUN_TOOL,
    AgentPlan,
    CallModelParams,
    CallModelResult,
    FinishParams,
    FinishResult,
    ModelOutcome,
    PlannedCall,
    PrepareParams,
    PrepareResult,
    RunToolParams,
    RunToolResult,
    TurnInput,
    TurnResult,
)
from milepost.contracts.naming import SESSION_TURN_WORKFLOW
from milepost.domain.effects import EffectState
from milepost.domain.errors import MilepostError
from milepost.domain.tools import Parallel
from milepost.domain.turns import TurnState
from workers.runtime import WORKFLOWS, runner


def planned(index: int, parallel: Parallel = Parallel.EXCLUSIVE, *, digest: str = "") -> PlannedCall:
    return PlannedCall(index=index, tool="bash", parallel=parallel, input_digest=digest or f"input-{index}")


def answer(*calls: PlannedCall, text: str = "") -> CallModelResult:
    return CallModelResult(ModelOutcome.ANSWERED, "effect", calls=calls, text_digest=text)


async def until_cancelled() -> None:
    """Beat until Temporal's cancellation arrives."""
    while True:
        activity.heartbeat()
        await asyncio.sleep(0.02)


@dataclass
class Script:
    """What the activities do; each may be replaced. `journal` holds what was begun, in order."""

    rounds: int = 2
    plan: Callable[[PrepareParams], Awaitable[PrepareResult]] | None = None
    model: Callable[[CallModelParams], Awaitable[CallModelResult]] | None = None
    tool: Callable[[RunToolParams], Awaitable[RunToolResult]] | None = None
    finish: Callable[[FinishParams], Awaitable[None]] | None = None
    max_rounds: int = 64
    journal: list[str] = field(default_factory=list)
    claims: set[str] = field(default_factory=set)
    end: FinishParams | None = None

    def begun(self, what: str) -> int:
        return sum(1 for entry in self.journal if entry.startswith(what))

    @activity.defn(name=PREPARE_TURN.name)
    async def prepare_turn(self, params: PrepareParams) -> PrepareResult:
        self._begin("prepare", params.claim)
        if self.plan is not None:
            return await self.plan(params)
        return self.prepared()

    def prepared(self) -> PrepareResult:
        queue = activity.info().task_queue
        return PrepareResult((AgentPlan("coder", self.max_rounds),), queue, queue)

    @activity.defn(name=CALL_MODEL.name)
    async def call_model(self, params: CallModelParams) -> CallModelResult:
        self._begin(f"model {params.round}", params.claim)
        if self.model is not None:
            return await self.model(params)
        if params.round < self.rounds:
            return answer(planned(0, digest=f"{params.round}"))
        return answer()

    @activity.defn(name=RUN_TOOL.name)
    async def run_tool(self, params: RunToolParams) -> RunToolResult:
        self._begin(f"tool {params.round}.{params.index}", params.claim)
        if self.tool is not None:
            return await self.tool(params)
        return self.ran(params)

    @staticmethod
    def ran(params: RunToolParams) -> RunToolResult:
        return RunToolResult("effect", EffectState.SUCCEEDED, f"result-{params.round}.{params.index}", is_error=False)

    @activity.defn(name=FINISH_TURN.name)
    async def finish_turn(self, params: FinishParams) -> FinishResult:
        """The first end is kept, as the ledger does: a local activity whose workflow task is lost runs again."""
        self._begin("finish", params.claim)
        if self.finish is not None:
            await self.finish(params)
        self.end = self.end or params
        return FinishResult(self.end.state)

    def _begin(self, what: str, claim: str) -> None:
        self.journal.append(what)
        self.claims.add(claim)

    def ended(self) -> tuple[TurnState, str | None]:
        """The recorded end, which no work followed."""
        assert self.end is not None, self.journal
        first = self.journal.index("finish")
        assert set(self.journal[first:]) == {"finish"}, self.journal
        return self.end.state, self.end.reason_code


@asynccontextmanager
async def serving(client: Client, script: Script, queue: str) -> AsyncIterator[None]:
    """A worker with the product's workflows, runner and failure types."""
    worker = Worker(
        client,
        task_queue=queue,
        workflows=WORKFLOWS,
        activities=[script.prepare_turn, script.call_model, script.run_tool, script.finish_turn],
        workflow_runner=runner(),
        workflow_failure_exception_types=[MilepostError],
        build_id="test",
        # Cancellations come with heartbeats; the tests need not wait for the usual throttling.
        max_heartbeat_throttle_interval=timedelta(milliseconds=50),
    )
    async with worker:
        yield


async def start(client: Client, queue: str, turn: TurnInput | None = None) -> WorkflowHandle[object, TurnResult]:
    return await client.start_workflow(
        SESSION_TURN_WORKFLOW,
        turn or TurnInput("trn_1", "ses_1", "ins_1"),
        id=f"turn/{uuid.uuid4()}",
        task_queue=queue,
        result_type=TurnResult,
    )
