"""Whole stacks in this process: what `run` and `chat` start for the time of a turn, and what `dev` keeps running."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from cli.serving import Served, serving
from cli.working import Say, working
from milepost.bootstrap.checkpoints import checkpoint_settings, consolidation_settings
from milepost.bootstrap.core import Core, migrate, open_core
from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.ownership import foreign_packages
from milepost.bootstrap.system import worker_name
from milepost.bootstrap.temporal import TemporalConnection, embedded
from milepost.config.loading import Config
from milepost.domain.errors import ConfigInvalid
from milepost.services.longterm.tools import LongTermTools
from milepost.services.skills import SkillTools

if TYPE_CHECKING:
    from workers.process import ExecutionParts
    from workers.runtime import WorkerSettings

DRAIN_SECONDS = 5.0
"""How long running work may take to end when a person stops a whole stack, who waits for it."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack and where to reach it."""

    core: Core
    served: Served
    namespace: str


@asynccontextmanager
async def running_stack(config: Config, root: DataRoot, *, role: str, tcp: bool, say: Say) -> AsyncIterator[Stack]:
    """Everything in one process: migrations, Temporal (embedded or configured), workers, API. Stops in reverse order.

    The caller holds the lock of the data root. Without `tcp` the API is served on its Unix socket only, for as long as
    one command takes; with it the process stays, and a configured cluster may be reached later.

    Raises:
        InstanceLocked: another process serves the data root's API.
        StorageUnavailable, SchemaTooNew, TemporalUnavailable, ConfigInvalid, SecretMissing.
    """
    from milepost.temporal.starter import TemporalStarter
    from workers.process import WorkerProcess, embedded_queues, host_name, split_queues

    await require_own_packages()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(root.serving_lock(role))
        await migrate(config, root)
        core = await stack.enter_async_context(open_core(config, root))
        say("Starting Temporal ..." if embedded(config) else "Connecting to Temporal ...")
        await core.take_over()
        await core.record_start(role)
        # On a shared cluster the queues must mean to every worker of the instance what they mean to this one.
        queues = embedded_queues() if embedded(config) else split_queues(host_name())

        settings = worker_settings(config, core.ledger.instance_id)

        def make(temporal: TemporalConnection) -> WorkerProcess:
            starter = TemporalStarter(temporal.client, core.ledger.instance_id, eager=not settings.deployment)
            return WorkerProcess(execution_parts(core), temporal.client, starter, queues, settings)

        part = await stack.enter_async_context(working(config, root, make, say, patient=tcp))
        served = await stack.enter_async_context(serving(core, part, role=role, tcp=tcp))
        yield Stack(core, served, part.namespace)


def worker_settings(config: Config, instance_id: str, *, drain_seconds: float = DRAIN_SECONDS) -> WorkerSettings:
    """Bounds and version of this process's workers. The embedded server has workers of one release only."""
    from milepost.temporal.versioning import deployment_name
    from workers.runtime import WorkerSettings

    section = config.settings.worker
    versioned = section.versioning and not embedded(config)
    return WorkerSettings(
        max_workflow_tasks=section.workflow_tasks,
        max_activities=section.activities,
        graceful_shutdown=timedelta(seconds=drain_seconds),
        deployment=deployment_name(instance_id) if versioned else "",
    )


def execution_parts(core: Core) -> ExecutionParts:
    """What the worker process needs of the core."""
    from milepost.tools import definitions
    from workers.process import ExecutionParts, host_name

    return ExecutionParts(
        ledger=core.ledger,
        notifier=core.notifier,
        clock=core.clock,
        contents=core.contents,
        agents=core.agents,
        gateway=core.gateway,
        workbench=core.workbench,
        tools=definitions,
        worker=worker_name(),
        host=host_name(),
        redactor=core.config.secrets.redactor,
        prices=core.prices,
        counters=core.counters,
        custom_tools=SkillTools(
            LongTermTools(core.extensions.tools, core.long_term, core.agents), core.config.skills.skills
        ),
        hooks=core.extensions.hooks,
        snapshots=core.snapshots,
        checkpoints=core.checkpoints,
        checkpoint_settings=checkpoint_settings(core.config),
        setup_seconds=core.config.settings.sandbox.setup.seconds,
        consolidation=consolidation_settings(core.config),
        memory=core.memory,
    )


async def require_own_packages() -> None:
    """Raise ConfigInvalid if another distribution owns a root package of ours: the wrong code could run."""
    problems = await asyncio.to_thread(foreign_packages)
    if problems:
        raise ConfigInvalid(" ".join(problems), fix="Install Milepost into an environment of its own.")
