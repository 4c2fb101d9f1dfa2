"""Everything a worker process runs, built from the parts that bootstrap provides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from temporalio.client import Client

from activities.compaction import Compactor
from activities.consolidation import ConsolidationActivities, ConsolidationParts, consolidation_activities
from activities.conversation import Conversations, OpenCheckpoints
from activities.custom import CustomCalls
from activities.environments import EnvironmentActivities
from activities.hooks import HookedCalls
from activities.internal import InternalCalls, attachment_tools, output_tools
from activities.models import ModelActivities
from activities.patience import PatientLedger
from activities.process_tools import ProcessCalls
from activities.remembered import MemoryParts, memory_parts
from activities.sandboxed import SandboxedCalls
from activities.teams import TeamActivities
from activities.toolcalls import plan_call
from activities.tools import ToolActivities
from activities.turns import ChooseQueues, ToolDefinitions, TurnActivities
from milepost.contracts.naming import MODELS_QUEUE, TURNS_QUEUE, queue_name, sandbox_queue
from milepost.domain.agents import AgentConfig
from milepost.domain.consolidation import ConsolidationSettings
from milepost.domain.errors import MilepostError
from milepost.domain.sessions import Session
from milepost.domain.turns import Turn
from milepost.observability.logging import get_logger
from milepost.ports.checkpoints import CheckpointStore
from milepost.ports.hooks import Hooks, NoHooks
from milepost.ports.ledger import Ledger, LedgerTx, WorkerBeat
from milepost.ports.models import ModelGateway, NoTokenCounters, TokenCounters
from milepost.ports.notifier import Notifier
from milepost.ports.prices import NoPrices, Prices
from milepost.ports.snapshots import Snapshots
from milepost.ports.system import Clock
from milepost.ports.tools import CustomTools, NoCustomTools
from milepost.ports.workflows import WorkflowStarter
from milepost.security.redaction import Redactor
from milepost.services.attached_texts import AttachmentReader
from milepost.services.checkpoints import Checkpoints, CheckpointSettings
from milepost.services.contents import Contents
from milepost.services.dispatch import Dispatcher
from milepost.services.effects import EffectJournal
from milepost.services.environment_preparation import Preparation
from milepost.services.forking import ForkCopier
from milepost.services.memory_edits import MemoryEdits
from milepost.services.memory_stores import MemoryStores
from milepost.services.outputs import OutputReader
from milepost.services.processes import ProcessService
from milepost.services.reconcile import Reconciler
from milepost.services.shells import Shells
from milepost.services.stops import StopWatch
from milepost.services.teams import Teams
from milepost.services.token_counts import RememberedCounts
from milepost.services.workbench import Workbench
from milepost.services.workspaces import WorkspaceGuard
from milepost.temporal.schedules import keep_consolidation
from workers.loops import RECONCILE_SECONDS, Loops
from workers.runtime import QueuePlan, WorkerRuntime, WorkerSettings

LIVE_WORKER_US = 60_000_000
LEAVE_SECONDS = 15.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ExecutionParts:
    """What the execution side needs of the rest. `worker` names the process, `host` the machine of its containers."""

    ledger: Ledger
    notifier: Notifier
    clock: Clock
    contents: Contents
    agents: Mapping[str, AgentConfig]
    gateway: ModelGateway
    workbench: Workbench
    tools: ToolDefinitions
    worker: str
    host: str
    snapshots: Snapshots | None = None
    redactor: Redactor = field(default_factory=Redactor)
    """Hides the instance's own secrets in what tools put out."""
    custom_tools: CustomTools = field(default_factory=NoCustomTools)
    prices: Prices = field(default_factory=NoPrices)
    counters: TokenCounters = field(default_factory=NoTokenCounters)
    hooks: Hooks = field(default_factory=NoHooks)
    checkpoints: CheckpointStore | None = None
    checkpoint_settings: CheckpointSettings = field(default_factory=CheckpointSettings)
    memory: MemoryStores | None = None
    setup_seconds: float = 1800.0
    """How long the setup command of an environment may take."""
    consolidation: ConsolidationSettings = field(default_factory=ConsolidationSettings)


def embedded_queues() -> QueuePlan:
    """One queue for everything: one process serves it all, and fewer polls make a step faster."""
    return QueuePlan(TURNS_QUEUE, TURNS_QUEUE, TURNS_QUEUE, frozenset({TURNS_QUEUE}))


def split_queues(host: str, serve: Sequence[str] = ()) -> QueuePlan:
    """One queue per kind of work. `serve` names kinds (`turns`, `models`, `sandbox`); none means all."""
    names = {"turns": TURNS_QUEUE, "models": MODELS_QUEUE, "sandbox": sandbox_queue(host)}
    chosen = frozenset(names[kind] for kind in (serve or names))
    return QueuePlan(names["turns"], names["models"], names["sandbox"], chosen)


def host_name() -> str:
    """The name this machine's sandbox queue carries."""
    return socket.gethostname() or "localhost"


@dataclass(frozen=True, slots=True)
class TurnSteps:
    """The activities of turns, and what they read conversations with."""

    conversations: Conversations
    turns: TurnActivities
    models: ModelActivities
    tools: ToolActivities
    memory: MemoryParts
    teams: TeamActivities


def turn_steps(parts: ExecutionParts, guard: WorkspaceGuard, queues: ChooseQueues) -> TurnSteps:
    """Build the activities of turns; they need no Temporal client."""
    stops = StopWatch(parts.ledger, parts.notifier)
    parts = replace(parts, ledger=PatientLedger(parts.ledger))
    conversations = Conversations(parts.ledger, parts.contents, _open_checkpoints(parts))
    journal = EffectJournal(parts.ledger, parts.clock, parts.worker)
    turns = TurnActivities(
        parts.ledger,
        parts.clock,
        parts.agents,
        parts.tools,
        parts.custom_tools,
        parts.hooks,
        parts.workbench,
        queues,
        parts.prices,
        has_memory=parts.memory is not None,
    )
    counters = RememberedCounts(parts.counters)
    compactor = Compactor(parts.ledger, parts.contents, journal, parts.gateway, counters)
    memory = memory_parts(parts.ledger, parts.clock, parts.contents, conversations, parts.memory, parts.worker)
    models = ModelActivities(
        parts.ledger,
        parts.clock,
        parts.contents,
        conversations,
        memory.reminded,
        journal,
        parts.gateway,
        stops,
        plan_call,
        counters,
        compactor,
    )
    shells = Shells(parts.ledger)
    processes = ProcessCalls(
        ProcessService(parts.ledger, parts.clock, parts.workbench, parts.host), shells, parts.redactor
    )
    sandboxed = SandboxedCalls(conversations, parts.workbench, parts.redactor, guard, shells, processes)
    custom = CustomCalls(parts.custom_tools, parts.redactor)
    outputs, files = OutputReader(parts.ledger, parts.contents), AttachmentReader(parts.ledger, parts.contents)
    internal = InternalCalls({**output_tools(outputs), **attachment_tools(files), **memory.tools})
    hooked = HookedCalls(parts.hooks, parts.contents, journal, parts.redactor)
    tools = ToolActivities(parts.contents, conversations, journal, sandboxed, custom, internal, hooked, stops)
    teams = TeamActivities(Teams(parts.ledger, parts.contents, parts.clock))
    return TurnSteps(conversations, turns, models, tools, memory, teams)


def _open_checkpoints(parts: ExecutionParts) -> OpenCheckpoints | None:
    store = parts.checkpoints
    if store is None:
        return None
    return lambda turns: Checkpoints(parts.ledger, parts.clock, store, turns, parts.checkpoint_settings)


def _consolidation(
    parts: ExecutionParts, edits: MemoryEdits | None, models_queue: Callable[[], str]
) -> ConsolidationActivities | None:
    """None where there is no memory."""
    if parts.memory is None or edits is None:
        return None
    needs = ConsolidationParts(
        parts.ledger,
        parts.clock,
        parts.agents,
        parts.gateway,
        parts.prices,
        parts.counters,
        parts.consolidation,
        parts.worker,
    )
    return consolidation_activities(needs, parts.memory, edits, models_queue)


class WorkerProcess:
    """Temporal workers and leased loops of one process."""

    def __init__(
        self,
        parts: ExecutionParts,
        client: Client,
        starter: WorkflowStarter,
        queues: QueuePlan,
        settings: WorkerSettings | None = None,
        reconcile_seconds: float = RECONCILE_SECONDS,
    ) -> None:
        self._parts = parts
        self._queues = queues
        self._guard = WorkspaceGuard(PatientLedger(parts.ledger), parts.clock, parts.snapshots, parts.worker)
        self._processes = ProcessService(parts.ledger, parts.clock, parts.workbench, parts.host)
        self._forks = ForkCopier(parts.ledger, parts.clock, parts.snapshots)
        self._steps = turn_steps(parts, self._guard, self._choose_queues)
        self._starter = starter
        self._preparation = Preparation(parts.ledger, parts.clock)
        self._environments = EnvironmentActivities(
            parts.ledger,
            parts.clock,
            parts.contents,
            parts.workbench,
            parts.redactor,
            lambda tx, session: self._choose_queues(tx, session)[1],
            parts.setup_seconds,
        )
        self._client = client
        self._scheduling: asyncio.Task[None] | None = None
        self._consolidation = _consolidation(parts, self._steps.memory.edits, lambda: self._queue(self._queues.models))
        self._runtime = WorkerRuntime(
            client, parts.ledger.instance_id, queues, self._activities, settings or WorkerSettings()
        )
        self._loops = Loops(
            parts.ledger,
            parts.notifier,
            parts.clock,
            Dispatcher(parts.ledger, starter, parts.clock, parts.worker),
            Reconciler(parts.ledger, starter, parts.clock, parts.worker, self._close_calls),
            self._beat,
            self._tidy,
            reconcile_seconds,
            None if self._steps.memory.writer is None else self._steps.memory.writer.run_once,
        )

    async def start(self) -> None:
        """Serve. Raises StorageUnavailable."""
        await self._runtime.start()
        await self._loops.start()
        if self._queues.turns in self._queues.serve:
            every = self._parts.consolidation.interval if self._consolidation is not None else None
            keeping = keep_consolidation(self._client, self._parts.ledger.instance_id, every)
            self._scheduling = asyncio.create_task(keeping, name="schedule")

    async def stop(self) -> None:
        """Stop in order: no new work, then the workers, then the containers that no turn needs.

        What runs may end within the settings' `graceful_shutdown`. The rest is handed on: its attempt ends without a
        record, and another worker, or this one when it is back, takes it up.
        """
        await self._loops.drain()
        if self._scheduling is not None:
            self._scheduling.cancel()
            await asyncio.gather(self._scheduling, return_exceptions=True)
        await self._runtime.stop()
        await self._steps.conversations.close()
        await self._steps.memory.close()
        await self._loops.stop()
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._leave()
        except (MilepostError, TimeoutError) as error:
            _log.warning("containers.left", error=str(error) or type(error).__name__)

    async def _tidy(self) -> None:
        await self._preparation.reconcile(self._starter)
        if self._queues.sandbox in self._queues.serve:
            await self._guard.repair_all()
            await self._forks.carry_on_all()
            await self._processes.refresh_all()
            await self._parts.workbench.tidy(self._parts.ledger)

    async def _leave(self) -> None:
        """Leave no container behind, unless another process of this host still works with them."""
        since = self._parts.clock.now() - LIVE_WORKER_US
        live = await self._parts.ledger.read(lambda tx: tx.workers.live(since))
        if all(beat.host != self._parts.host for beat in live):
            await self._parts.workbench.tidy(self._parts.ledger, leaving=True)
            await self._processes.refresh_all()

    def _beat(self, at: int) -> WorkerBeat:
        return WorkerBeat(self._parts.worker, self._parts.host, tuple(sorted(self._queues.serve)), at)

    async def _close_calls(self, turn: Turn) -> None:
        """Before a turn whose workflow is gone ends: nothing of it may run on in a container of this host."""
        if self._queues.sandbox not in self._queues.serve:
            return
        try:
            await self._steps.tools.close_calls(turn.turn_id, turn.session_id)
        except MilepostError as error:
            _log.warning("calls.left", turn_id=turn.turn_id, error=error.code, detail=error.message)

    def _activities(self, queue: str) -> list[Callable[..., Any]]:
        served: list[Callable[..., Any]] = []
        if queue == self._queues.turns:
            teams = self._steps.teams
            served += [self._steps.turns.prepare_turn, self._steps.turns.finish_turn]
            served += [self._environments.claim_environment, self._environments.fail_environment]
            served += [teams.brief_part, teams.plan_subtasks, teams.award_subtasks, teams.end_part]
        if queue == self._queues.turns and self._consolidation is not None:
            served.append(self._consolidation.find_idle_agents)
        if queue == self._queues.models:
            served.append(self._steps.models.call_model)
        if queue == self._queues.models and self._consolidation is not None:
            served.append(self._consolidation.consolidate_memory)
        if queue in (self._queues.models, self._queues.sandbox):
            # Tools of the user's own run where model calls do, built-in ones where the containers are.
            served.append(self._steps.tools.run_tool)
        if queue == self._queues.sandbox:
            served.append(self._steps.tools.end_calls)
            served.append(self._environments.prepare_environment)
        return served

    def _choose_queues(self, tx: LedgerTx, session: Session) -> tuple[str, str]:
        models = self._queue(self._queues.models)
        if self._queues.sandbox in self._queues.serve:
            return models, self._queue(self._queues.sandbox)
        # This process has no containers: a live host that has them takes the Session.
        since = self._parts.clock.now() - LIVE_WORKER_US
        hosts = sorted(
            queue for beat in tx.workers.live(since) for queue in beat.queues if queue.startswith("sandbox.")
        )
        return models, self._queue(hosts[0] if hosts else self._queues.sandbox)

    def _queue(self, name: str) -> str:
        return queue_name(self._parts.ledger.instance_id, name)
