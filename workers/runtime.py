"""The Temporal workers of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from milepost.bootstrap.system import release
from milepost.contracts.naming import queue_name
from milepost.domain.errors import MilepostError
from milepost.temporal.versioning import make_current
from workflows.agent_run import AgentWorkflow
from workflows.consolidation import ConsolidationWorkflow
from workflows.coordinator import CoordinatorWorkflow
from workflows.environment import EnvironmentWorkflow
from workflows.session_turn import SessionTurnWorkflow

SHARED_WORKFLOW_CODE = (
    "workflows.agent_loop",
    "workflows.calls",
    "workflows.children",
    "workflows.ending",
    "workflows.team",
)
PASSED_THROUGH = (
    "milepost.domain",
    "milepost.engine",
    "milepost.contracts",
    "milepost.ledger",
    # What turns share is orchestration too, and would be executed anew for every run of a turn (a third of what a run
    # costs); a test sees to it that it imports nothing else.
    *SHARED_WORKFLOW_CODE,
    # The data converter's own libraries: pure, and expensive to import again for every run.
    "pydantic",
    "pydantic_core",
    "cattrs",
    "attr",
    "attrs",
)
WORKFLOWS: tuple[type, ...] = (
    SessionTurnWorkflow,
    AgentWorkflow,
    CoordinatorWorkflow,
    EnvironmentWorkflow,
    ConsolidationWorkflow,
)

STICKY_TIMEOUT = timedelta(seconds=3)
"""How long a lost worker's cached workflows hold up their next task."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """What a process serves: `turns` also runs the workflows; equal names share one worker."""

    turns: str
    models: str
    sandbox: str
    serve: frozenset[str]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Bounds of one process."""

    max_workflow_tasks: int = 20
    max_activities: int = 64
    max_local_activities: int = 64
    max_cached_workflows: int = 500
    graceful_shutdown: timedelta = timedelta(seconds=5)
    """Running work may take this long to end when the process stops; what has not ended is handed on."""
    identity: str = ""
    deployment: str = ""
    """Name of the worker deployment that `build_id` is a version of; "" where all workers are of one release."""
    build_id: str = field(default_factory=release)
    """Without one the SDK hashes the code of every loaded module, which takes seconds."""


def runner() -> SandboxedWorkflowRunner:
    """The SDK's workflow sandbox, passing through exactly the pure packages."""
    return SandboxedWorkflowRunner(SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH))


class WorkerRuntime:
    """Runs one Temporal worker per served queue until it is stopped."""

    def __init__(
        self,
        client: Client,
        instance_id: str,
        queues: QueuePlan,
        activities: Callable[[str], Sequence[Callable[..., Any]]],
        settings: WorkerSettings,
    ) -> None:
        self._client = client
        self._settings = settings
        self._current: asyncio.Task[None] | None = None
        self._workers = [
            _worker(client, instance_id, queue, queues, activities(queue), settings) for queue in sorted(queues.serve)
        ]
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Begin polling."""
        for worker in self._workers:
            await self._stack.enter_async_context(worker)
        if self._settings.deployment:
            work = make_current(self._client, self._settings.deployment, self._settings.build_id)
            self._current = asyncio.create_task(work, name="make-current")

    async def stop(self) -> None:
        """Stop polling, let running work end within the grace period, cancel the rest."""
        if self._current is not None:
            self._current.cancel()
            await asyncio.gather(self._current, return_exceptions=True)
        await asyncio.shield(self._stack.aclose())


def _worker(
    client: Client,
    instance_id: str,
    queue: str,
    queues: QueuePlan,
    activities: Sequence[Callable[..., Any]],
    settings: WorkerSettings,
) -> Worker:
    return Worker(
        client,
        task_queue=queue_name(instance_id, queue),
        workflows=WORKFLOWS if queue == queues.turns else (),
        activities=activities,
        workflow_runner=runner(),
        workflow_failure_exception_types=[MilepostError],
        max_concurrent_workflow_tasks=settings.max_workflow_tasks,
        max_concurrent_activities=settings.max_activities,
        max_concurrent_local_activities=settings.max_local_activities,
        max_cached_workflows=settings.max_cached_workflows,
        graceful_shutdown_timeout=settings.graceful_shutdown,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        max_heartbeat_throttle_interval=timedelta(seconds=3),
        identity=settings.identity or None,
        build_id=None if settings.deployment else settings.build_id,
        deployment_config=_deployment(settings),
    )


def _deployment(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """A turn is pinned: it ends on the release that it began on."""
    if not settings.deployment:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment, settings.build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )
