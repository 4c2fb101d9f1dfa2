"""One pass over the idle agents whose memory may be consolidated; a schedule starts it."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError

from workflows.calls import call

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import (
        CONSOLIDATE,
        FIND_IDLE,
        ConsolidateParams,
        ConsolidationResult,
        FindIdleParams,
    )
    from milepost.contracts.naming import CONSOLIDATION_WORKFLOW


@workflow.defn(name=CONSOLIDATION_WORKFLOW)
class ConsolidationWorkflow:
    """One agent after another, so that a pass costs a provider no more than one call at a time."""

    @workflow.run
    async def run(self) -> ConsolidationResult:
        key = workflow.info().first_execution_run_id
        found = await call(FIND_IDLE, FindIdleParams())
        asked = promotions = failed = 0
        for idle in found.agents:
            params = ConsolidateParams(idle.session_id, idle.agent, key)
            try:
                done = await call(
                    CONSOLIDATE, params, queue=found.models_queue, summary=f"{idle.agent} in {idle.session_id}"
                )
            except ActivityError:
                # The ledger says why; the others are not to wait for the next pass.
                failed += 1
                continue
            asked += bool(done.consolidation_id)
            promotions += done.promotions
        return ConsolidationResult(asked, promotions, failed)
