"""A served application over the real services on a real SQLite ledger, and what its tests write into that ledger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI

from api.app import create_app
from api.server import ApiServer
from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.config.agents import AgentFile
from milepost.config.skills import read_skills
from milepost.domain.agents import AgentConfig
from milepost.domain.content import Content
from milepost.domain.effects import Effect, EffectClass, EffectSpec, EffectState
from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import EmbedderUnknown, ProviderUnknown, StorageUnavailable
from milepost.domain.events import AgentStarted, Event, ModelCalled, ModelRetried, StreamKind, ToolFinished
from milepost.domain.longterm import LongTermConfig
from milepost.domain.memory import MemorySettings
from milepost.domain.messages import AssistantMessage, FinishReason, ReasoningPart, Sampling, TextPart
from milepost.domain.providers import ScriptedProvider
from milepost.domain.turns import TurnState
from milepost.domain.usage import Usage
from milepost.embedders.lexical import LexicalHash
from milepost.engine.effects import effect_id
from milepost.engine.images import check_image
from milepost.extraction import ProcessExtractor
from milepost.memory.block_files import FileBlocks
from milepost.memory.checkpoint_files import CheckpointFiles
from milepost.memory.daily_files import FileDailyLog
from milepost.memory.legacy_files import LegacyFiles
from milepost.ports.ledger import Delta, Ledger, LedgerTx, NewEvent
from milepost.ports.models import NoTokenCounters
from milepost.ports.prices import NoPrices
from milepost.ports.sandbox import SandboxProvider, SandboxSpec
from milepost.providers.gateway import Gateway
from milepost.sandboxes.detection import FolderDetector
from milepost.security.access import Access
from milepost.services.approvals import ApprovalService
from milepost.services.attachments import AttachmentService
from milepost.services.catalog import Services
from milepost.services.changes import ChangesService
from milepost.services.checkpoint_files import CheckpointService
from milepost.services.consolidations import ConsolidationService
from milepost.services.contents import Contents
from milepost.services.environment_gate import EnvironmentGate
from milepost.services.environments import EnvironmentRules, EnvironmentService
from milepost.services.estimates import EstimateService
from milepost.services.exporting.service import ExportService
from milepost.services.finishing import Ending, end_turn, tool_event_key
from milepost.services.forks import ForkService
from milepost.services.git import GitService
from milepost.services.health import Check, HealthService
from milepost.services.history import HistoryService
from milepost.services.importing.recovery import RecoveryService
from milepost.services.importing.service import ImportService
from milepost.services.live import LiveService
from milepost.services.lives import AgentService
from milepost.services.longterm.ledger_store import LedgerLongTerm
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
from milepost.snapshots import GitSnapshots
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from milepost.tools import definitions
from tests.support.sandboxes import MemorySandboxes
from tests.support.semantic import WordMemory

T = TypeVar("T")

TOKEN = "test-token-" + "0" * 32
AGENT = "coder"
HOST = "host-of-tests"
MEMORY = MemorySettings()


@dataclass
class Stack:
    """Everything of one served instance."""

    services: Services
    ledger: SwitchedLedger
    notifier: Any
    app: FastAPI
    server: ApiServer
    access: Access
    root: Path
    checks: dict[str, Check]
    sandboxes: MemorySandboxes
    client: httpx.AsyncClient = field(repr=False)

    @property
    def url(self) -> str:
        assert self.server.url is not None
        return self.server.url

    @property
    def ws_url(self) -> str:
        return self.url.replace("http://", "ws://") + "/api/v1/ws"

    async def post(self, path: str, body: Any) -> httpx.Response:
        """Post JSON in ASCII, which also carries what has no UTF-8."""
        headers = {"Content-Type": "application/json"}
        return await self.client.post(path, content=json.dumps(body), headers=headers)

    async def open_session(self, **fields: Any) -> str:
        folder = self.root / "project"
        folder.mkdir(exist_ok=True)
        response = await self.post("/api/v1/sessions", {"workspace": str(folder)} | fields)
        assert response.status_code == 201, response.text
        return str(response.json()["session_id"])

    async def begin(self, session_id: str, text: str = "do it", **fields: Any) -> dict[str, Any]:
        response = await self.post(f"/api/v1/sessions/{session_id}/turns", {"text": text} | fields)
        assert response.status_code in (200, 202), response.text
        return dict(response.json())

    def work(self, session_id: str, turn_id: str) -> Work:
        return Work(self.ledger, session_id, turn_id)


class SwitchedLedger:
    """The real ledger, whose database a test can take away. `reads` counts read transactions."""

    def __init__(self, real: Ledger) -> None:
        self._real = real
        self.gone = False
        self.reads = 0

    @property
    def instance_id(self) -> str:
        return self._real.instance_id

    async def write(self, body: Callable[[LedgerTx], T]) -> T:
        self._check()
        return await self._real.write(body)

    async def read(self, body: Callable[[LedgerTx], T]) -> T:
        self._check()
        self.reads += 1
        return await self._real.read(body)

    async def check(self) -> None:
        self._check()
        await self._real.check()

    async def close(self) -> None:
        await self._real.close()

    def _check(self) -> None:
        if self.gone:
            raise StorageUnavailable("The database does not answer.", fix="Start it.")


@dataclass
class Work:
    """Writes what a worker would write for one turn."""

    ledger: Ledger
    session_id: str
    turn_id: str
    at: int = 1_700_000_000_000_000
    round: int = 0

    def spec(self, position: str, operation: str, effect_class: EffectClass) -> EffectSpec:
        digest = hashlib.sha256(f"{position}".encode()).hexdigest()
        key = effect_id(self.turn_id, 0, AGENT, position, operation, digest)
        return EffectSpec(key, key, self.session_id, self.turn_id, 0, AGENT, position, operation, effect_class, digest)

    async def append(self, *events: tuple[str, Event]) -> None:
        new = [NewEvent(f"{self.turn_id}/{key}", event, self.turn_id) for key, event in events]
        await self.ledger.write(lambda tx: self._append(tx, new))

    def _append(self, tx: LedgerTx, new: list[NewEvent]) -> None:
        tx.events.append(self.session_id, StreamKind.SESSION, new, self.at)
        tx.notify(self.session_id)

    async def start_agent(self) -> None:
        started = AgentStarted(self.turn_id, AGENT, "scripted", "demo", "Be careful.", (), Sampling(), 8)
        await self.append(("agent", started))

    async def start_call(self) -> tuple[EffectSpec, int]:
        """Dispatch the next model call; returns its spec and attempt."""
        self.round += 1
        spec = self.spec(f"model.{self.round}", "scripted/demo", EffectClass.MODEL)
        return spec, await self.redispatch(spec)

    async def redispatch(self, spec: EffectSpec) -> int:
        effect: Effect = await self.ledger.write(lambda tx: tx.effects.dispatch(spec, self.at, "worker"))
        return effect.attempt

    async def say(self, spec: EffectSpec, attempt: int, offset: int, text: str, channel: str = "text") -> None:
        await self.say_pieces(spec, attempt, offset, [text], channel)

    async def say_pieces(
        self, spec: EffectSpec, attempt: int, offset: int, texts: list[str], channel: str = "text"
    ) -> None:
        """Several pieces, one after the other, in one transaction."""
        deltas = []
        for text in texts:
            deltas.append(Delta(self.turn_id, AGENT, spec.effect_id, attempt, channel, offset, text))
            offset += len(text)
        await self.ledger.write(lambda tx: tx.deltas.add(self.session_id, deltas, self.at))

    async def retry_call(self, spec: EffectSpec, attempt: int) -> None:
        """Record that an attempt failed and will be made again."""
        retried = ModelRetried(self.turn_id, AGENT, spec.effect_id, attempt, "model_unavailable", "gone", Usage())
        await self.append((f"{spec.effect_id}/retried/{attempt}", retried))

    async def finish_call(self, spec: EffectSpec, attempt: int, text: str, reasoning: str = "") -> None:
        called = ModelCalled(
            turn_id=self.turn_id,
            agent=AGENT,
            effect_id=spec.effect_id,
            attempt=attempt,
            round=self.round,
            provider="scripted",
            model="demo",
            message=AssistantMessage((*([ReasoningPart(reasoning)] if reasoning else []), TextPart(text))),
            finish=FinishReason.STOP,
            usage=Usage(10, 2, 5, 1),
        )

        def body(tx: LedgerTx) -> None:
            tx.effects.settle(spec.effect_id, attempt, EffectState.SUCCEEDED, self.at, b"{}")
            self._append(tx, [NewEvent(f"{spec.effect_id}/called", called, self.turn_id)])

        await self.ledger.write(body)

    async def run_tool(self, output: Content, full: Content | None = None, tool: str = "bash") -> str:
        """A finished tool call; returns its effect id."""
        self.round += 1
        spec = self.spec(f"tool.{self.round}.0", tool, EffectClass.ATTACHABLE)
        finished = ToolFinished(
            self.turn_id,
            AGENT,
            spec.effect_id,
            1,
            self.round,
            0,
            "call_1",
            tool,
            EffectState.SUCCEEDED,
            output,
            False,
            {"exit_code": 0},
            full,
        )

        def body(tx: LedgerTx) -> None:
            tx.effects.dispatch(spec, self.at, "worker")
            tx.effects.settle(spec.effect_id, 1, EffectState.SUCCEEDED, self.at, b"{}")
            self._append(
                tx, [NewEvent(tool_event_key(self.turn_id, AGENT, spec.position, "finished"), finished, self.turn_id)]
            )

        await self.ledger.write(body)
        return spec.effect_id

    async def claim(self) -> None:
        await self.ledger.write(lambda tx: tx.turns.claim(self.turn_id, "run_1"))

    async def end(self, state: TurnState = TurnState.COMPLETED, reason: str = "") -> None:
        def body(tx: LedgerTx) -> None:
            tx.turns.lock_session(self.session_id)
            end_turn(tx, tx.turns.get(self.turn_id), Ending(state, reason), self.at + 1)

        await self.ledger.write(body)


SCRIPTED = {"scripted": ScriptedProvider("scripted", "demo")}


class NoSecrets:
    """A secret store that nobody asks."""

    def resolve(self, reference: str) -> str:
        raise AssertionError(reference)


def validate_route(provider: str, model: str, script: str | None = None) -> None:
    if provider != "scripted":
        raise ProviderUnknown(f"There is no provider '{provider}'.", field="provider", fix="Known: scripted.")


class LexicalAlone:
    """`Embedders` that have the lexical hash and nothing else."""

    default = LexicalHash()

    def named(self, name: str) -> LexicalHash:
        if name not in ("lexical", "default"):
            raise EmbedderUnknown(f"There is no embedder '{name}'.", field="embedder", fix="Configured: lexical.")
        return self.default

    def for_space(self, space: EmbeddingSpace) -> LexicalHash | None:
        return self.default if space == self.default.space else None


def long_term(ledger: Ledger, clock: SystemClock) -> LongTermMemory:
    store = LedgerLongTerm(ledger)

    async def open_store(_name: str) -> LedgerLongTerm:
        return store

    return LongTermMemory(open_store, LexicalAlone(), clock, LongTermConfig())


def make_services(
    ledger: Ledger, notifier: Any, root: Path, checks: dict[str, Check], sandboxes: SandboxProvider | None = None
) -> Services:
    clock, ids = SystemClock(), UuidIds()
    contents = Contents(FileBlobStore(root / "blobs"))
    agents = {AGENT: AgentConfig(AGENT, "scripted", "demo", memory=MEMORY)}
    turns = TurnService(ledger, contents, clock, ids, agents, validate_route)
    stores = MemoryStores(FileBlocks(root / "data"), FileDailyLog(root / "data"), WordMemory())
    edits = stores.edits(ledger, clock)
    environments = EnvironmentService(
        ledger, clock, FolderDetector(), EnvironmentRules(lambda image: check_image(image, (), any_image=False))
    )
    workbench = Workbench(
        sandboxes or MemorySandboxes(),
        lambda session: SandboxSpec(session.session_id, ledger.instance_id, session.workspace.path),
        EnvironmentGate(ledger, environments),
    )
    checkpoints = CheckpointService(ledger, clock, CheckpointFiles(root / "checkpoints" / "v1"), agents)

    def check(name: str) -> Any:
        async def run() -> Check:
            return checks[name]

        return run

    return Services(
        sessions=SessionService(ledger, clock, ids, agents, AGENT),
        turns=turns,
        estimates=EstimateService(ledger, agents, NoPrices(), NoTokenCounters(), definitions),
        history=HistoryService(ledger),
        rewinds=RewindService(ledger, clock, ids, GitSnapshots(root / "snapshots")),
        forks=ForkService(
            ledger, clock, ids, GitSnapshots(root / "snapshots"), lambda path: workspace_folder(path, root / "data")
        ),
        environments=environments,
        attachments=AttachmentService(ledger, contents, clock, ids, ProcessExtractor()),
        changes=ChangesService(ledger, GitSnapshots(root / "snapshots")),
        checkpoints=checkpoints,
        recovery=RecoveryService(ledger, contents, clock, LegacyFiles(root), checkpoints.write),
        agents=AgentService(ledger, clock, ids, agents, turns),
        consolidations=ConsolidationService(ledger, clock, edits, agents),
        memory=MemoryService(ledger, clock, ids, agents, stores),
        search=SearchService(ledger),
        exports=ExportService(ledger, contents, clock, "0.1.0"),
        imports=ImportService(ledger, contents, clock, ids),
        approvals=ApprovalService(ledger, clock, ids),
        processes=ProcessService(ledger, clock, workbench, HOST),
        git=GitService(ledger, clock, contents, workbench, HOST),
        outcomes=OutcomeService(ledger, contents, clock),
        long_term=long_term(ledger, clock),
        live=LiveService(ledger, notifier, clock),
        contents=contents,
        skills=SkillService(ledger, clock, ids, read_skills([]).skills),
        agent_settings=AgentFile(root / "milepost.yaml"),
        models=ModelService(Gateway(SCRIPTED, NoSecrets()), SCRIPTED, agents, ids),
        health=HealthService(lambda: {name: check(name) for name in checks}, frozenset({"ledger"})),
        temporal_ui="http://127.0.0.1:8233",
        temporal_namespace="default",
        release="0.1.0",
        instance_id=ledger.instance_id,
    )


@asynccontextmanager
async def running_stack(
    url: str,
    root: Path,
    *,
    uds: Path | None = None,
    provider: Callable[[str], SandboxProvider] | None = None,
    **options: Any,
) -> AsyncIterator[Stack]:
    """Serve on a free loopback port until the block ends, over sandboxes in memory unless a provider is given."""
    notifier = await open_notifier(url)
    ledger = SwitchedLedger(await open_ledger(url, notifier))
    checks = {"ledger": Check("ledger", True, "sqlite"), "temporal": Check("temporal", False, "no answer", "start it")}
    sandboxes = MemorySandboxes()
    given = sandboxes if provider is None else provider(ledger.instance_id)
    services = make_services(ledger, notifier, root, checks, given)
    access = Access(TOKEN)
    serving = {name: options.pop(name) for name in ("write_seconds", "head_seconds", "connections") if name in options}
    app = create_app(services, access, **options)
    server = ApiServer(app, port=0, uds=uds, **serving)
    await server.start()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=server.url or "", headers=headers, timeout=20) as client:
        yield Stack(services, ledger, notifier, app, server, access, root, checks, sandboxes, client)
    await server.stop(1.0)
    await ledger.close()
    await notifier.close()
