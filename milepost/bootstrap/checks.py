"""What `milepost doctor` and the health routes look at: every real part, with the exact fix."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from milepost.bootstrap.checkpoints import checkpoint_settings, open_checkpoints
from milepost.bootstrap.data_root import MIN_FREE_BYTES, DataRoot
from milepost.bootstrap.embedders import embeddings_check
from milepost.bootstrap.extensions import Extensions
from milepost.bootstrap.ownership import foreign_packages
from milepost.bootstrap.snapshots import open_snapshots
from milepost.config.loading import Config
from milepost.domain.agents import AgentConfig
from milepost.domain.checkpoints import CheckpointPolicy
from milepost.domain.errors import SnapshotFailed, StorageUnavailable, TemporalUnavailable
from milepost.domain.providers import Route
from milepost.ports.ledger import Ledger
from milepost.ports.models import ModelGateway
from milepost.ports.sandbox import SandboxProvider
from milepost.ports.system import Clock
from milepost.services.health import Check, CheckFunction

LOW_SPACE_BYTES = 1024**3
LIVE_WORKER_US = 60_000_000


@dataclass(frozen=True, slots=True)
class TemporalPart:
    """What the services know of Temporal. `check` raises TemporalUnavailable; None: it is not running here now."""

    ui: str
    namespace: str
    target: str
    check: Callable[[], Awaitable[None]] | None


@dataclass(frozen=True, slots=True)
class Parts:
    """What the checks look at. `agents` are those of now, which may be others than the configuration had at first."""

    config: Config
    root: DataRoot
    ledger: Ledger
    clock: Clock
    gateway: ModelGateway
    sandboxes: SandboxProvider | None
    temporal: TemporalPart
    extensions: Extensions
    agents: Mapping[str, AgentConfig]


def functions(parts: Parts) -> dict[str, CheckFunction]:
    """The checks by name, in the order they are shown."""
    found: dict[str, CheckFunction] = {
        "configuration": partial(_configuration, parts),
        "packages": _packages,
        "disk": partial(_disk, parts),
        "database": partial(_database, parts),
        "temporal": partial(_temporal, parts),
        "sandbox": partial(_sandbox, parts),
        "snapshots": partial(_snapshots, parts),
        "checkpoints": partial(_checkpoints, parts),
        "embeddings": partial(embeddings_check, parts.config),
    }
    for name in parts.config.tools:
        found[f"tool:{name}"] = partial(_tool, parts, name)
    for name in parts.config.hooks:
        found[f"hook:{name}"] = partial(_hook, parts, name)
    for agent in list(parts.agents.values()):
        for number, route in enumerate((Route(agent.provider, agent.model), *agent.fallbacks)):
            name = f"model:{agent.agent_id}" + (f":fallback-{number}" if number else "")
            found[name] = partial(_model, parts, name, route.provider, route.model)
    return found


async def _configuration(parts: Parts) -> Check:
    path = parts.config.path
    detail = f"Read from {path}." if path is not None else "No milepost.yaml; the built-in defaults are in force."
    return Check("configuration", True, detail)


async def _packages() -> Check:
    problems = await asyncio.to_thread(foreign_packages)
    if problems:
        return Check("packages", False, " ".join(problems), "Install Milepost into an environment of its own.")
    return Check("packages", True, "The root packages belong to Milepost alone.")


async def _disk(parts: Parts) -> Check:
    try:
        free = shutil.disk_usage(parts.root.path).free
    except OSError as error:
        return Check("disk", False, f"{parts.root.path}: {error.strerror}.", "Set MILEPOST_HOME to a usable folder.")
    detail = f"{free / 1024**3:.1f} GiB free at {parts.root.path}."
    if free < LOW_SPACE_BYTES:
        return Check("disk", False, detail, f"Free some space: nothing starts below {MIN_FREE_BYTES // 1024**2} MiB.")
    return Check("disk", True, detail)


async def _database(parts: Parts) -> Check:
    await parts.ledger.check()
    kind = "PostgreSQL" if parts.config.database_url().startswith("postgresql") else "SQLite"
    return Check("database", True, f"{kind} answers; instance {parts.ledger.instance_id}.")


async def _temporal(parts: Parts) -> Check:
    temporal = parts.temporal
    stored = _payloads(parts.config)
    if temporal.check is not None:
        await temporal.check()
        where = temporal.ui or "an unknown address"
        return Check("temporal", True, f"{temporal.target} answers; UI at {where}.{stored}")
    from milepost.temporal.dev_server import executable

    try:
        program = await asyncio.to_thread(executable)
    except TemporalUnavailable as error:
        return Check("temporal", False, error.message, error.fix)
    return Check("temporal", True, f"The embedded server is started when it is needed ({program}).{stored}")


def _payloads(config: Config) -> str:
    """Which key encrypts what Temporal stores. Raises SecretMissing, ConfigInvalid."""
    from milepost.bootstrap.temporal import data_converter

    section = config.settings.temporal.encryption
    if section is None:
        return ""
    data_converter(config)
    return f" Payloads are encrypted with the key '{section.current}'."


async def _sandbox(parts: Parts) -> Check:
    if parts.sandboxes is None:
        return Check("sandbox", True, "Off by configuration: Sessions have no built-in tools.")
    health = await parts.sandboxes.check()
    limits = f" Not enforced on this machine: {', '.join(health.unenforced)}." if health.unenforced else ""
    return Check("sandbox", health.ok, health.detail + limits, health.fix)


async def _tool(parts: Parts, name: str) -> Check:
    """Whether a tool of the user's own can be used; no peer is called."""
    problem = (await asyncio.to_thread(parts.extensions.tools.problems)).get(name)
    if problem is not None:
        return Check(f"tool:{name}", False, problem.message, problem.fix)
    ((_, tool),) = parts.extensions.tools.offered([name])
    policy = tool.policy
    return Check(f"tool:{name}", True, f"{policy.effect_class}, {policy.parallel}, approval: {policy.approval}.")


async def _hook(parts: Parts, name: str) -> Check:
    """Whether a hook can be asked; no peer is called."""
    problem = (await asyncio.to_thread(parts.extensions.hooks.problems)).get(name)
    if problem is not None:
        return Check(f"hook:{name}", False, problem.message, problem.fix)
    rule = parts.config.hooks[name].rule
    tools = "any tool" if rule.tools is None else ", ".join(rule.tools)
    return Check(f"hook:{name}", True, f"{rule.when} {tools}; when it fails: {rule.on_failure}.")


async def _checkpoints(parts: Parts) -> Check:
    """Whether the cache of conversations can be used; whether each file can is told by `milepost checkpoint list`."""
    policy = checkpoint_settings(parts.config).policy
    if policy is CheckpointPolicy.NONE:
        return Check(
            "checkpoints", True, "Off by configuration: after a restart conversations are read from the ledger."
        )
    store = open_checkpoints(parts.root)
    try:
        conversations = await asyncio.to_thread(lambda: len(store.usable_keys()))
    except StorageUnavailable as error:
        return Check("checkpoints", False, f"{error.message} Turns run, and read the ledger.", error.fix)
    return Check("checkpoints", True, f"{policy}; of {conversations} conversations in {parts.root.checkpoints}.")


async def _snapshots(parts: Parts) -> Check:
    snapshots = open_snapshots(parts.config, parts.root)
    if snapshots is None and parts.config.settings.sandbox.backend == "e2b":
        return Check("snapshots", True, "Off: the files are in E2B's sandboxes. Turns have no diff, rewinds no files.")
    if snapshots is None:
        return Check("snapshots", True, "Off by configuration: turns have no diff, and a rewind restores no files.")
    try:
        detail = await snapshots.check()
    except SnapshotFailed as error:
        consequence = "Turns run, but have no diff, and a rewind restores no files."
        return Check("snapshots", False, f"{error.message} {consequence}", error.fix)
    return Check("snapshots", True, f"{detail}; kept in {parts.root.snapshots}.")


async def _model(parts: Parts, name: str, provider: str, model: str) -> Check:
    parts.gateway.validate(provider, model)
    health = await parts.gateway.check(provider, model)
    return Check(name, health.ok, f"{provider}/{model}: {health.detail}", health.fix)
