"""The turn's workflow with changed command orders, which a replay must notice. Loaded inside the workflow sandbox."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

from milepost.contracts.activities import FINISH_TURN, CallModelResult, FinishParams, TurnInput, TurnResult
from milepost.contracts.naming import SESSION_TURN_WORKFLOW
from milepost.domain.errors import MilepostError
from milepost.domain.turns import TurnState
from workflows.agent_loop import AgentLoop
from workflows.calls import call
from workflows.session_turn import SessionTurnWorkflow


class PausingLoop(AgentLoop):
    async def call_model(self, agent: str, round_: int) -> CallModelResult:
        await workflow.sleep(timedelta(milliseconds=1))
        return await super().call_model(agent, round_)


@workflow.defn(name=SESSION_TURN_WORKFLOW, failure_exception_types=[MilepostError])
class PausesBeforeTheModel(SessionTurnWorkflow):
    loop_type = PausingLoop

    @workflow.init
    def __init__(self, turn: TurnInput) -> None:
        super().__init__(turn)

    @workflow.run
    async def run(self, turn: TurnInput) -> TurnResult:
        return await super().run(turn)


@workflow.defn(name=SESSION_TURN_WORKFLOW, failure_exception_types=[MilepostError])
class FinishesFirst(SessionTurnWorkflow):
    @workflow.init
    def __init__(self, turn: TurnInput) -> None:
        super().__init__(turn)

    @workflow.run
    async def run(self, turn: TurnInput) -> TurnResult:
        await call(FINISH_TURN, FinishParams(turn.turn_id, turn.session_id, "", TurnState.COMPLETED, 0))
        return await super().run(turn)
