"""The workflow starter port on a Temporal client."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from milepost.contracts.activities import TurnInput
from milepost.contracts.environments import EnvironmentInput
from milepost.contracts.naming import (
    APPROVAL_ANSWERED,
    ENVIRONMENT_WORKFLOW,
    SESSION_TURN_WORKFLOW,
    TURNS_QUEUE,
    environment_workflow_id,
    queue_name,
)
from milepost.domain.errors import TemporalUnavailable
from milepost.ports.workflows import EnvironmentStart, TurnStart, WorkflowState
from milepost.temporal.client import unavailable

RPC_TIMEOUT = timedelta(seconds=10)
TASK_TIMEOUT = timedelta(seconds=5)

_STATES = {
    WorkflowExecutionStatus.RUNNING: WorkflowState.RUNNING,
    WorkflowExecutionStatus.COMPLETED: WorkflowState.COMPLETED,
    WorkflowExecutionStatus.FAILED: WorkflowState.FAILED,
    WorkflowExecutionStatus.CANCELED: WorkflowState.CANCELED,
    WorkflowExecutionStatus.TERMINATED: WorkflowState.TERMINATED,
    WorkflowExecutionStatus.TIMED_OUT: WorkflowState.TIMED_OUT,
    # The latest run of an id continues elsewhere only for a moment; nobody may end the turn in it.
    WorkflowExecutionStatus.CONTINUED_AS_NEW: WorkflowState.RUNNING,
}


class TemporalStarter:
    """Starts, cancels and describes workflows of one instance.

    With `eager` a start comes back with its first task if a worker of this process can take it. Where workers are
    versioned it must not: a worker of an older release would take what belongs to the current one.
    """

    def __init__(self, client: Client, instance_id: str, *, eager: bool = True) -> None:
        self._eager = eager
        self._client = client
        self._instance_id = instance_id
        self._queue = queue_name(instance_id, TURNS_QUEUE)

    async def start_turn(self, start: TurnStart) -> None:
        """See `ports.workflows.WorkflowStarter`."""
        await self._start(
            SESSION_TURN_WORKFLOW,
            TurnInput(start.turn_id, start.session_id, self._instance_id),
            start.workflow_id,
            f"Turn of {start.title}",
            {"session": start.session_id, "title": start.title, "agent": start.agent},
        )

    async def start_environment(self, start: EnvironmentStart) -> None:
        """See `ports.workflows.WorkflowStarter`."""
        await self._start(
            ENVIRONMENT_WORKFLOW,
            EnvironmentInput(start.session_id, start.generation, self._instance_id),
            environment_workflow_id(self._instance_id, f"{start.session_id}/{start.generation}"),
            f"Environment {start.generation} of {start.title}",
            {"session": start.session_id, "title": start.title},
        )

    async def _start(self, name: str, argument: object, workflow_id: str, summary: str, memo: dict[str, str]) -> None:
        try:
            await self._client.start_workflow(
                name,
                argument,
                id=workflow_id,
                task_queue=self._queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                task_timeout=TASK_TIMEOUT,
                memo=memo,
                static_summary=summary,
                rpc_timeout=RPC_TIMEOUT,
                request_eager_start=self._eager,
            )
        except WorkflowAlreadyStartedError:
            return
        except RPCError as error:
            raise self._unavailable() from error

    async def answer(self, workflow_id: str, approval_id: str) -> None:
        """See `ports.workflows.WorkflowStarter`."""
        try:
            await self._client.get_workflow_handle(workflow_id).signal(
                APPROVAL_ANSWERED, approval_id, rpc_timeout=RPC_TIMEOUT
            )
        except RPCError as error:
            if not _says_not_found(error):
                raise self._unavailable() from error

    async def cancel(self, workflow_id: str) -> None:
        """See `ports.workflows.WorkflowStarter`."""
        try:
            await self._client.get_workflow_handle(workflow_id).cancel(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if not _says_not_found(error):
                raise self._unavailable() from error

    async def state(self, workflow_id: str) -> WorkflowState:
        """See `ports.workflows.WorkflowStarter`."""
        try:
            description = await self._client.get_workflow_handle(workflow_id).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if _says_not_found(error):
                return WorkflowState.NOT_FOUND
            raise self._unavailable() from error
        if description.status is None:
            raise self._unavailable()
        # An unknown status belongs to a newer server: whatever it is, nobody knows that the workflow has ended.
        return _STATES.get(description.status, WorkflowState.RUNNING)

    async def check(self) -> None:
        """See `ports.workflows.WorkflowStarter`."""
        try:
            healthy = await self._client.service_client.check_health(timeout=RPC_TIMEOUT)
        except RPCError as error:
            raise self._unavailable() from error
        if not healthy:
            raise self._unavailable()

    def _unavailable(self) -> TemporalUnavailable:
        return unavailable(self._client.service_client.config.target_host)


def _says_not_found(error: RPCError) -> bool:
    """Whether the cluster knows the namespace and says that it has no such workflow.

    The same status for a missing namespace is no word about the workflow: the cluster is another one, or was set up
    anew. Source: temporal.api.errordetails.v1 (`NamespaceNotFoundFailure`, `NotFoundFailure`).
    """
    if error.status is not RPCStatusCode.NOT_FOUND:
        return False
    return not any("Namespace" in detail.type_url for detail in error.grpc_status.details)
