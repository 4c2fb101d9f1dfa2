"""The typed configuration: one frozen model per section of `milepost.yaml`.

Durations are seconds. See docs/configuration.md for the meaning in prose and an example.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, StringConstraints

from milepost.config.attachments import AttachmentsSection
from milepost.config.budgets import BudgetSection
from milepost.config.embeddings import EmbeddingsSection
from milepost.config.hooks import HookSection
from milepost.config.longterm import AgentLongTermSection, LongTermSection
from milepost.config.memory import MemorySection
from milepost.config.prices import PricesSection
from milepost.config.providers import Fallbacks, ProviderSection
from milepost.config.references import SecretReference, is_reference
from milepost.config.sections import BaseUrl, Count, HttpUrl, Name, Number, Port, Section
from milepost.config.tools import CustomToolName, ToolSection
from milepost.domain.agents import ALL_TOOLS, DEFAULT_MAX_ROUNDS, DEFAULT_SYSTEM_PROMPT, MAX_ROUNDS
from milepost.domain.approvals import DEFAULT_APPROVAL_SECONDS, MAX_APPROVAL_SECONDS
from milepost.domain.compaction import DEFAULT_THRESHOLD
from milepost.domain.skills import MAX_SKILLS
from milepost.engine.images import CURATED
from milepost.security.schemas import check_parameters

DEFAULT_AGENT = "default"
SCRIPTED = "scripted"
MIB = 1024**2
MAX_MEMORY = 1024**5
MAX_DISK = 1024**5

ToolName = Literal[ALL_TOOLS]  # type: ignore[valid-type]


def _database_url(value: str) -> str:
    if is_reference(value):
        return value
    parts = urlsplit(value)
    if parts.scheme not in ("sqlite", "postgresql"):
        raise ValueError("write sqlite:///PATH or postgresql://USER@HOST:PORT/NAME.")
    if parts.password:
        raise ValueError(
            "a password may not stand in the configuration. Leave it out here and name it under "
            "'database.password' as env:NAME or file:PATH."
        )
    return value


class DatabaseSection(Section):
    url: Annotated[str, AfterValidator(_database_url)] | None = None
    """sqlite:///PATH or postgresql://USER@HOST:PORT/NAME, or a reference to such an address. Default: a SQLite
    file in the data root."""
    password: SecretReference | None = None
    """Password of the PostgreSQL user."""
    blobs: Path | None = None
    """Folder of long texts, which the ledger names by their digest. Default: in the data root. Processes that have
    different data roots need one that all of them see."""


class TlsSection(Section):
    server_name: str | None = None
    """Name the server's certificate is checked against, where it differs from the address."""
    ca_file: Path | None = None
    """Certificate authorities to trust instead of the system's."""
    cert_file: Path | None = None
    """Client certificate (mTLS)."""
    key: SecretReference | None = None
    """Client key in PEM form (mTLS)."""


def _tls(value: Any) -> Any:
    return ({} if value else None) if isinstance(value, bool) else value


Tls = Annotated[TlsSection | None, BeforeValidator(_tls, json_schema_input_type=bool | TlsSection)]


class EncryptionSection(Section):
    keys: Annotated[dict[Name, SecretReference], Field(min_length=1, max_length=16)]
    """Keys by name: 32 random bytes in base64, each behind a reference. All of them decrypt."""
    current: str
    """Name of the key that encrypts."""


class TemporalSection(Section):
    address: str = ""
    """HOST:PORT of a Temporal cluster. Empty: Milepost starts its own development server."""
    namespace: Annotated[str, StringConstraints(min_length=1, max_length=1000)] = "default"
    tls: Tls = None
    """true, or what differs from the system's defaults."""
    api_key: SecretReference | None = None
    ui_url: BaseUrl | None = None
    """Where a person opens the Temporal UI; used for links only."""
    port: Port = 7233
    """Port of the embedded server; another free one is taken when it is in use. 0: any free one."""
    ui_port: Port = 8233
    """Port of the embedded server's UI; another free one is taken when it is in use. 0: any free one."""
    encryption: EncryptionSection | None = None
    """Encrypts what Temporal stores of this instance."""


class ApiSection(Section):
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8080
    hosts: tuple[str, ...] = ()
    """Further names the API may be called by (Host header)."""
    origins: tuple[BaseUrl, ...] = ()
    """Further origins a browser may call from (Origin header)."""


def _answer_schema(value: dict[str, Any]) -> dict[str, Any]:
    try:
        check_parameters(value)
    except ValueError as error:
        raise ValueError(str(error).replace("the parameters", "the schema") + ".") from None
    return value


class ResponseFormatSection(Section):
    """An answer as JSON."""

    json_schema: Annotated[dict[str, Any], AfterValidator(_answer_schema)] | None = None
    """JSON Schema of the answer; without it any JSON object."""
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "answer"
    strict: bool = True


class SamplingSection(Section):
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[Count, Field(gt=0)] | None = None
    reasoning_effort: str | None = None
    stop: tuple[str, ...] = ()
    response_format: ResponseFormatSection | None = None


class ContextSection(Section):
    compact: bool = True
    """Whether a conversation that outgrows the model's window is compacted."""
    threshold: Annotated[Count, Field(ge=10, le=95)] = DEFAULT_THRESHOLD
    """Percent of the window over which it is."""
    window: Annotated[Count, Field(ge=1_000, le=100_000_000)] | None = None
    """Tokens of the model's window, where the provider's context_tokens does not say them."""


class AgentSection(Section):
    provider: str = SCRIPTED
    model: str | None = None
    """Default: the model of the provider."""
    system_prompt: Annotated[str, StringConstraints(max_length=100_000)] = DEFAULT_SYSTEM_PROMPT
    tools: tuple[ToolName | CustomToolName, ...] = get_args(ToolName)
    """Built-in tools, and those of the section `tools`."""
    sampling: SamplingSection = SamplingSection()
    max_rounds: Annotated[Count, Field(ge=1, le=MAX_ROUNDS)] = DEFAULT_MAX_ROUNDS
    """Model calls of one turn, at most."""
    approvals: dict[ToolName | CustomToolName | Literal["*"], Literal["allow", "ask"]] = Field(default_factory=dict)
    """Whether a person must agree before a tool runs: ask or allow, by tool; "*" stands for any other tool."""
    approval_seconds: Annotated[Count, Field(ge=1, le=MAX_APPROVAL_SECONDS)] = DEFAULT_APPROVAL_SECONDS
    """How long a person may take to answer; after that the call is not run."""
    fallbacks: Fallbacks | None = None
    """Tried in order when a model call fails. Default: those of the provider."""
    budget: BudgetSection = BudgetSection()
    memory: MemorySection = MemorySection()
    context: ContextSection = ContextSection()
    skills: Annotated[tuple[str, ...], Field(max_length=MAX_SKILLS)] = ()
    """Skills it has in Sessions that do not say which."""
    long_term_memory: AgentLongTermSection = AgentLongTermSection()
    role: Literal["autonomous", "coordinator"] = "autonomous"
    """autonomous works itself; a coordinator plans, has its workers work, and puts the results together."""
    workers: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    """Agents that a coordinator hands subtasks to. One whose tools nobody has gets a worker of its own."""
    depends_on: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    """Agents whose outputs this one builds on, in a Session with several."""
    on_failure: Literal["fail", "continue"] = "fail"
    """What its failure means in a Session with several agents: the turn fails, or the others go on without it."""


class SkillsSection(Section):
    folders: Annotated[tuple[Path, ...], Field(max_length=20)] = ()
    """Folders of skills: each has folders with a SKILL.md. Relative ones are relative to this file's folder."""


class LimitsSection(Section):
    memory: Annotated[ByteSize, Field(ge=16 * MIB, le=MAX_MEMORY)] = ByteSize(2 * 1024 * MIB)
    """Bytes, or with a unit: 512MiB, 2GiB."""
    cpus: Annotated[Number, Field(gt=0, le=1024)] = 2.0
    pids: Annotated[Count, Field(ge=8, le=1_000_000)] = 512
    workspace: Annotated[ByteSize, Field(ge=0, le=MAX_DISK)] = ByteSize(64 * 1024 * MIB)
    """How large all files of a Workspace may be together; 0 is no limit."""
    volume: Annotated[ByteSize, Field(ge=0, le=MAX_DISK)] = ByteSize(32 * 1024 * MIB)
    """The same for each volume of an environment."""
    free_disk: Annotated[ByteSize, Field(ge=0, le=MAX_DISK)] = ByteSize(1024 * MIB)
    """What commands must leave free on this machine's disks; 0 is nothing."""


class SetupSection(Section):
    devcontainer: Literal["ask", "run"] = "ask"
    """run: the exact postCreateCommand of a devcontainer.json runs in Sessions that nobody has reviewed."""
    seconds: Annotated[Number, Field(ge=1, le=10_800)] = 1800.0
    """How long a setup command may take."""


class E2BSection(Section):
    api_key: SecretReference = "env:E2B_API_KEY"
    template: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,199}$")] = "base"
    """Of all sandboxes; nothing is installed into it."""
    domain: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$")] = "e2b.app"
    api_url: HttpUrl | None = None
    """Of an installation of one's own; by default https://api.DOMAIN."""
    sandbox_url: HttpUrl | None = None
    """Where all sandboxes of such an installation are reached."""
    timeout_seconds: Annotated[Count, Field(ge=60, le=86_400)] = 3600
    """After how long without use the service pauses a sandbox. It has limits of its own, by plan."""
    request_seconds: Annotated[Number, Field(gt=0, le=600)] = 60.0
    upload_bytes: Annotated[ByteSize, Field(ge=MIB, le=MAX_MEMORY)] = ByteSize(256 * MIB)
    """How large the packed Workspace may be. Bytes, or with a unit: 256MiB."""


class SandboxSection(Section):
    backend: Literal["podman", "e2b", "none"] = "podman"
    """e2b: sandboxes are machines of that service. none: Sessions have no tools that need a sandbox."""
    e2b: E2BSection = E2BSection()
    socket: Path | None = None
    """Podman's API socket; by default it is found, or a service is started."""
    image: str | None = None
    """Default image; by default the local one that `milepost sandbox build-image` makes."""
    images: dict[Literal[CURATED], str] = Field(default_factory=dict)  # type: ignore[valid-type]
    """Local images that stand for the curated ones, by their names."""
    allow_untrusted_images: bool = False
    """Whether Sessions may name images that are neither curated nor named here."""
    setup: SetupSection = SetupSection()
    allow_unenforced_limits: bool = False
    """Whether sandboxes run although this machine cannot enforce some of their limits, which is shown."""
    network: Literal["none", "bridge"] = "none"
    idle_seconds: Annotated[Number, Field(ge=60, le=604_800)] = 1800.0
    """How long a container is kept that no turn uses."""
    limits: LimitsSection = LimitsSection()
    environment: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    """Names of this machine's environment variables that commands in the sandbox may see."""


class SnapshotsSection(Section):
    enabled: bool = True
    """Whether the state of a Workspace's files is kept before and after each call that may change them. Needs git."""
    seconds: Annotated[Number, Field(gt=0, le=900)] = 60.0
    """How long one snapshot may take."""
    max_file: Annotated[ByteSize, Field(ge=1024, le=MAX_MEMORY)] = ByteSize(256 * MIB)
    """Larger files are left out of snapshots. Bytes, or with a unit: 256MiB."""


class ConsolidationSection(Section):
    enabled: bool = False
    """Whether facts of idle agents' memories are promoted into their core blocks. Each time is a model call."""
    interval_secs: Annotated[Count, Field(ge=60, le=31_536_000)] = 1800
    """How often idle agents are looked for."""
    idle_threshold_secs: Annotated[Count, Field(ge=1, le=31_536_000)] = 120
    """How long after its last turn an agent counts as idle."""
    review: bool = False
    """Whether a person decides about each change before it is made."""


class CheckpointsSection(Section):
    policy: Literal["every_response", "every_n", "manual", "none"] = "every_response"
    """When the conversation that a model gets is kept beside the ledger, to be read faster after a restart."""
    every: Annotated[Count, Field(ge=1, le=10_000)] = 8
    """With every_n: after how many answers of an agent."""


class WorkerSection(Section):
    queues: tuple[Literal["turns", "models", "sandbox"], ...] = ("turns", "models", "sandbox")
    """Kinds of work that `milepost worker` takes: workflows and ledger work, model calls, tools in the sandbox."""
    workflow_tasks: Annotated[Count, Field(ge=1, le=1000)] = 20
    """Workflow tasks at the same time."""
    activities: Annotated[Count, Field(ge=1, le=1000)] = 64
    """Model and tool calls at the same time, of each kind."""
    drain_seconds: Annotated[Number, Field(ge=0, le=3600)] = 30.0
    """How long running work may take to end when `milepost worker` is told to stop; the rest is handed on."""
    versioning: bool = True
    """On a cluster each release is a version of its own, and turns stay on theirs. false: one release at a time."""


class LoggingSection(Section):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    format: Literal["text", "json"] = "text"


class Settings(Section):
    """The whole of `milepost.yaml`."""

    data_root: Path | None = None
    """Folder of the database, blobs, socket and token. Default: the platform's data folder of the user.
    The environment variable MILEPOST_HOME wins over it."""
    database: DatabaseSection = DatabaseSection()
    temporal: TemporalSection = TemporalSection()
    api: ApiSection = ApiSection()
    providers: dict[Name, ProviderSection] = Field(default_factory=dict)
    """Model providers by name. 'scripted' is always there."""
    agents: dict[Name, AgentSection] = Field(default_factory=dict)
    """Agents by id. Without any there is one, 'default', on the scripted provider."""
    skills: SkillsSection = SkillsSection()
    default_agent: str | None = None
    """Agent of Sessions that name none. Needed with more than one agent unless one is called 'default'."""
    tools: Annotated[dict[CustomToolName, ToolSection], Field(max_length=128)] = Field(default_factory=dict)
    """Tools of your own, by name. An agent has those that its `tools` name."""
    prices: PricesSection = PricesSection()
    embeddings: EmbeddingsSection = EmbeddingsSection()
    long_term_memory: LongTermSection = LongTermSection()
    hooks: Annotated[dict[Name, HookSection], Field(max_length=64)] = Field(default_factory=dict)
    """What is asked before and after tool calls, by name, in the order of the file."""
    sandbox: SandboxSection = SandboxSection()
    snapshots: SnapshotsSection = SnapshotsSection()
    checkpoints: CheckpointsSection = CheckpointsSection()
    consolidation: ConsolidationSection = ConsolidationSection()
    attachments: AttachmentsSection = AttachmentsSection()
    worker: WorkerSection = WorkerSection()
    logging: LoggingSection = LoggingSection()
