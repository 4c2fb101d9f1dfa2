"""The parts every process needs, opened and closed in order: storage, models, sandboxes, and the services on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from milepost.bootstrap import checks
from milepost.bootstrap.attachments import open_attachments
from milepost.bootstrap.checkpoints import open_checkpoints
from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.embedders import InstanceEmbedders
from milepost.bootstrap.extensions import Extensions, open_extensions
from milepost.bootstrap.longterm import open_long_term
from milepost.bootstrap.memory import open_memory
from milepost.bootstrap.sandboxes import environment_rules, open_sandboxes, spec_of
from milepost.bootstrap.snapshots import open_snapshots
from milepost.bootstrap.system import SystemClock, UuidIds, host_name, release
from milepost.config.agents import AgentFile
from milepost.config.loading import Config
from milepost.config.registry import LiveAgents
from milepost.domain.events import InstanceStarted, StreamKind
from milepost.memory.legacy_files import LegacyFiles
from milepost.ports.checkpoints import CheckpointStore
from milepost.ports.ledger import Ledger, LedgerTx, NewEvent
from milepost.ports.models import ModelGateway, TokenCounters
from milepost.ports.notifier import Notifier
from milepost.ports.prices import Prices
from milepost.ports.sandbox import SandboxProvider
from milepost.ports.snapshots import Snapshots
from milepost.providers.gateway import Gateway
from milepost.providers.pricing import PriceBook
from milepost.providers.tokenizers import Tokenizers
from milepost.sandboxes.detection import FolderDetector
from milepost.services.approvals import ApprovalService
from milepost.services.attachments import AttachmentService
from milepost.services.catalog import Services
from milepost.services.changes import ChangesService
from milepost.services.checkpoint_files import CheckpointService
from milepost.services.consolidations import ConsolidationService
from milepost.services.contents import Contents
from milepost.services.environment_gate import EnvironmentGate
from milepost.services.environments import EnvironmentService
from milepost.services.estimates import EstimateService
from milepost.services.exporting.service import ExportService
from milepost.services.forks import ForkService
from milepost.services.git import GitService
from milepost.services.health import HealthService
from milepost.services.history import HistoryService
from milepost.services.importing.recovery import RecoveryService
from milepost.services.importing.service import ImportService
from milepost.services.live import LiveService
from milepost.services.lives import AgentService
from milepost.services.longterm.service import LongTermMemory
from milepost.services.memory import MemoryService
from milepost.services.memory_stores import MemoryStores
from milepost.services.models import ModelService
from milepost.services.outcomes import OutcomeService
from milepost.services.processes import ProcessService
from milepost.services.rewinds import RewindService
from milepost.services.search import SearchService
from milepost.services.sessions import SessionService, workspace_folder
from milepost.services.skills import SkillService
from milepost.services.turns import TurnService
from milepost.services.workbench import Workbench
from milepost.storage import FileBlobStore, SchemaStatus, open_ledger, open_notifier, schema_state, upgrade
from milepost.tools import definitions

READY_PARTS = frozenset({"temporal", "database"})


@dataclass(frozen=True, slots=True)
class Core:
    """Everything but Temporal."""

    config: Config
    agents: LiveAgents
    root: DataRoot
    clock: SystemClock
    ids: UuidIds
    ledger: Ledger
    notifier: Notifier
    contents: Contents
    gateway: ModelGateway
    prices: Prices
    counters: TokenCounters
    sandboxes: SandboxProvider | None
    environments: EnvironmentService
    workbench: Workbench
    snapshots: Snapshots | None
    extensions: Extensions
    checkpoints: CheckpointStore
    embedders: InstanceEmbedders
    attachments: AttachmentService
    long_term: LongTermMemory
    memory: MemoryStores

    def services(self, temporal: checks.TemporalPart) -> Services:
        """The use cases of this process."""
        agents = self.agents
        sessions = SessionService(
            self.ledger,
            self.clock,
            self.ids,
            agents,
            self.config.default_agent,
            self.root.path,
            environment_rules(self.config).check_image,
        )
        read = self.attachments.settled
        turns = TurnService(self.ledger, self.contents, self.clock, self.ids, agents, self.gateway.validate, read)
        checkpoints = CheckpointService(self.ledger, self.clock, self.checkpoints, agents)
        parts = checks.Parts(
            self.config,
            self.root,
            self.ledger,
            self.clock,
            self.gateway,
            self.sandboxes,
            temporal,
            self.extensions,
            agents,
        )
        return Services(
            sessions=sessions,
            turns=turns,
            estimates=EstimateService(self.ledger, agents, self.prices, self.counters, definitions),
            history=HistoryService(self.ledger),
            rewinds=RewindService(
                self.ledger,
                self.clock,
                self.ids,
                self.snapshots,
                networked=self.config.settings.sandbox.network != "none",
            ),
            forks=ForkService(
                self.ledger,
                self.clock,
                self.ids,
                self.snapshots,
                lambda path: workspace_folder(path, self.root.path),
            ),
            environments=self.environments,
            attachments=self.attachments,
            changes=ChangesService(self.ledger, self.snapshots, self.config.secrets.redactor.certain),
            checkpoints=checkpoints,
            recovery=RecoveryService(
                self.ledger, self.contents, self.clock, LegacyFiles(self.root.path), checkpoints.write
            ),
            agents=AgentService(self.ledger, self.clock, self.ids, agents, turns),
            consolidations=ConsolidationService(
                self.ledger, self.clock, self.memory.edits(self.ledger, self.clock), agents
            ),
            memory=MemoryService(self.ledger, self.clock, self.ids, agents, self.memory),
            search=SearchService(self.ledger),
            exports=ExportService(self.ledger, self.contents, self.clock, release()),
            imports=ImportService(self.ledger, self.contents, self.clock, self.ids, self.root.path),
            approvals=ApprovalService(self.ledger, self.clock, self.ids),
            processes=ProcessService(self.ledger, self.clock, self.workbench, host_name()),
            git=GitService(self.ledger, self.clock, self.contents, self.workbench, host_name()),
            outcomes=OutcomeService(self.ledger, self.contents, self.clock),
            long_term=self.long_term,
            live=LiveService(self.ledger, self.notifier, self.clock),
            contents=self.contents,
            skills=SkillService(
                self.ledger, self.clock, self.ids, self.config.skills.skills, self.config.skills.problems
            ),
            agent_settings=AgentFile(self.config.path, self.agents.refresh),
            models=ModelService(self.gateway, self.config.providers, agents, self.ids),
            health=HealthService(lambda: checks.functions(parts), READY_PARTS),
            temporal_ui=temporal.ui,
            temporal_namespace=temporal.namespace,
            release=release(),
            instance_id=self.ledger.instance_id,
        )

    async def take_over(self) -> None:
        """Go on at once where a killed instance stopped: on SQLite nobody else can be at work.

        The caller owns the data root. On PostgreSQL other processes may be, so there the dead one's leases run out.

        Raises StorageUnavailable.
        """
        if self.config.database_url().startswith("sqlite"):
            await self.ledger.write(_forget_leases)

    async def record_start(self, *roles: str) -> None:
        """Append `instance.started` to the instance's stream. Raises StorageUnavailable."""
        now = self.clock.now()
        event = NewEvent(self.ids.new("start"), InstanceStarted(release(), roles))
        stream = f"instance/{self.ledger.instance_id}"
        await self.ledger.write(lambda tx: tx.events.append(stream, StreamKind.INSTANCE, [event], now))


async def migrate(config: Config, root: DataRoot) -> str:
    """Make the ledger or bring it to this release's schema; returns the schema's revision.

    Raises StorageUnavailable, SchemaTooNew.
    """
    root.prepare()
    return (await upgrade(config.database_url())).needed


async def is_empty(config: Config) -> bool:
    """Whether there is no ledger yet. Raises StorageUnavailable."""
    return (await schema_state(config.database_url())).status is SchemaStatus.EMPTY


@asynccontextmanager
async def open_core(config: Config, root: DataRoot) -> AsyncIterator[Core]:
    """Open storage, models and sandboxes; close them in reverse order.

    Raises:
        StorageUnavailable, SchemaOutdated, SchemaTooNew, SecretMissing, ConfigInvalid.
    """
    url = config.database_url()
    counters = Tokenizers(config.providers)
    await asyncio.to_thread(config.learn_secrets)
    async with contextlib.AsyncExitStack() as stack:
        notifier = await open_notifier(url)
        stack.push_async_callback(notifier.close)
        ledger = await open_ledger(url, notifier)
        stack.push_async_callback(ledger.close)
        gateway = Gateway(config.providers, config.secrets)
        stack.push_async_callback(gateway.close)
        embedders = InstanceEmbedders(config)
        stack.push_async_callback(embedders.close)
        long_term = await stack.enter_async_context(open_long_term(config, root, ledger, embedders))
        memory = open_memory(root, ledger, embedders, database_url=url)
        stack.push_async_callback(memory.semantic.close)
        extensions = await stack.enter_async_context(open_extensions(config))
        sandboxes = await stack.enter_async_context(open_sandboxes(config, root, ledger.instance_id))
        instance_id = ledger.instance_id
        clock, ids, contents = SystemClock(), UuidIds(), Contents(FileBlobStore(config.blobs(root.blobs)))
        environments = EnvironmentService(ledger, clock, FolderDetector(), environment_rules(config))
        attachments = open_attachments(config, ledger, contents, clock, ids)
        stack.push_async_callback(attachments.close)
        yield Core(
            config=config,
            agents=LiveAgents(config),
            root=root,
            clock=clock,
            ids=ids,
            ledger=ledger,
            notifier=notifier,
            contents=contents,
            gateway=gateway,
            prices=PriceBook(config.providers, config.prices),
            counters=counters,
            sandboxes=sandboxes,
            snapshots=open_snapshots(config, root),
            environments=environments,
            workbench=Workbench(
                sandboxes,
                lambda session: spec_of(config, root, instance_id, session),
                EnvironmentGate(ledger, environments),
                config.settings.sandbox.idle_seconds,
            ),
            extensions=extensions,
            checkpoints=open_checkpoints(root),
            embedders=embedders,
            attachments=attachments,
            long_term=long_term,
            memory=memory,
        )


def _forget_leases(tx: LedgerTx) -> None:
    tx.leases.clear()
    tx.attachments.release()
    tx.memory_tasks.forget_leases()
    tx.workspaces.forget_operations()
    for beat in tx.workers.live(0):
        # Else an orderly stop soon after would leave the containers to a process that was killed.
        tx.workers.gone(beat.worker)
