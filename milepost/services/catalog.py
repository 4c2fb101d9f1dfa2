"""The use cases that outer surfaces call."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from milepost.ports.agents import AgentEditor
from milepost.services.approvals import ApprovalService
from milepost.services.attachments import AttachmentService
from milepost.services.changes import ChangesService
from milepost.services.checkpoint_files import CheckpointService
from milepost.services.consolidations import ConsolidationService
from milepost.services.contents import Contents
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
from milepost.services.models import ModelService
from milepost.services.outcomes import OutcomeService
from milepost.services.processes import ProcessService
from milepost.services.rewinds import RewindService
from milepost.services.search import SearchService
from milepost.services.sessions import SessionService
from milepost.services.skills import SkillService
from milepost.services.turns import TurnService


@dataclass(frozen=True, slots=True)
class Services:
    """Everything `api` and `cli` may call. `temporal_link` turns a workflow id into its Temporal UI address."""

    sessions: SessionService
    turns: TurnService
    estimates: EstimateService
    history: HistoryService
    rewinds: RewindService
    forks: ForkService
    environments: EnvironmentService
    attachments: AttachmentService
    changes: ChangesService
    checkpoints: CheckpointService
    recovery: RecoveryService
    agents: AgentService
    consolidations: ConsolidationService
    memory: MemoryService
    search: SearchService
    exports: ExportService
    imports: ImportService
    approvals: ApprovalService
    processes: ProcessService
    git: GitService
    outcomes: OutcomeService
    long_term: LongTermMemory
    live: LiveService
    contents: Contents
    agent_settings: AgentEditor
    skills: SkillService
    models: ModelService
    health: HealthService
    temporal_ui: str
    temporal_namespace: str
    release: str
    instance_id: str

    def temporal_link(self, workflow_id: str) -> str:
        """Address of a workflow in the Temporal UI."""
        return f"{self.temporal_ui}/namespaces/{self.temporal_namespace}/workflows/{quote(workflow_id, safe='')}"
