"""An environment's workflow as it must not become, to see that a replay notices."""

from __future__ import annotations

from temporalio import workflow

from workflows.calls import call

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.environments import (
        CLAIM_ENVIRONMENT,
        FAIL_ENVIRONMENT,
        EnvironmentEnded,
        EnvironmentFailedParams,
        EnvironmentInput,
        EnvironmentStepParams,
    )
    from milepost.contracts.naming import ENVIRONMENT_WORKFLOW


@workflow.defn(name=ENVIRONMENT_WORKFLOW)
class FailsFirst:
    """Records a failure before it claims."""

    @workflow.run
    async def run(self, environment: EnvironmentInput) -> EnvironmentEnded:
        session_id, generation = environment.session_id, environment.generation
        run = workflow.info().run_id
        failed = await call(FAIL_ENVIRONMENT, EnvironmentFailedParams(session_id, generation, run, "x", "x"))
        await call(CLAIM_ENVIRONMENT, EnvironmentStepParams(session_id, generation, run))
        return EnvironmentEnded(session_id, generation, failed.state)
