"""The workflow of one generation of a Session's environment. It begins with consent and ends Ready or failed."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from workflows.calls import call

with workflow.unsafe.imports_passed_through():
    from milepost.contracts.activities import MAX_BOUNDARY_TEXT
    from milepost.contracts.environments import (
        CLAIM_ENVIRONMENT,
        FAIL_ENVIRONMENT,
        PREPARE_ENVIRONMENT,
        EnvironmentEnded,
        EnvironmentFailedParams,
        EnvironmentInput,
        EnvironmentStepParams,
    )
    from milepost.contracts.naming import ENVIRONMENT_WORKFLOW
    from milepost.domain.errors import Fenced, MilepostError

WORKER_LOST = "worker_lost"


@workflow.defn(name=ENVIRONMENT_WORKFLOW, failure_exception_types=[MilepostError])
class EnvironmentWorkflow:
    """Claim the generation, prepare it where its container will be, record what went wrong.

    Waiting for a person is no part of it: a decision is a row, and nothing needs to happen meanwhile.
    """

    @workflow.run
    async def run(self, environment: EnvironmentInput) -> EnvironmentEnded:
        session_id, generation = environment.session_id, environment.generation
        params = EnvironmentStepParams(session_id, generation, workflow.info().run_id)
        try:
            claimed = await call(CLAIM_ENVIRONMENT, params, summary=f"claim generation {generation}")
            done = await call(
                PREPARE_ENVIRONMENT, params, queue=claimed.sandbox_queue, summary=f"prepare generation {generation}"
            )
            return EnvironmentEnded(session_id, generation, done.state)
        except ActivityError as error:
            code, reason = _why(error)
        if code == Fenced.code:
            # Stopped, superseded, or another run's: there is nothing to record.
            raise ApplicationError(reason, type=code, non_retryable=True)
        failed = EnvironmentFailedParams(session_id, generation, params.claim, code, reason[:MAX_BOUNDARY_TEXT])
        state = (await call(FAIL_ENVIRONMENT, failed, summary="record the failure")).state
        return EnvironmentEnded(session_id, generation, state, reason[:MAX_BOUNDARY_TEXT])


def _why(error: ActivityError) -> tuple[str, str]:
    if is_cancelled_exception(error):
        return "environment_stopped", "The workflow was cancelled in Temporal."
    cause = error.cause
    if isinstance(cause, ApplicationError):
        return cause.type or "internal", cause.message
    return WORKER_LOST, f"Step {error.activity_type} got no answer from a worker: {cause}."
