"""The sandbox back end of this instance, and what a Session's sandbox is made of."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from milepost.bootstrap.data_root import DataRoot
from milepost.bootstrap.system import worker_name
from milepost.config.environment import podman_environment
from milepost.config.loading import Config
from milepost.config.models import LimitsSection
from milepost.domain.errors import MilepostError, SandboxUnavailable
from milepost.domain.sessions import Session
from milepost.engine.images import check_image
from milepost.ports.sandbox import Exec, SandboxLimits, SandboxProvider, SandboxSpec
from milepost.services.environments import EnvironmentRules
from milepost.services.health import Check

if TYPE_CHECKING:
    from milepost.sandboxes.e2b.provider import E2BProvider
    from milepost.sandboxes.image import ImageInfo
    from milepost.sandboxes.podman.provider import PodmanProvider


@asynccontextmanager
async def open_sandboxes(config: Config, root: DataRoot, instance_id: str) -> AsyncIterator[SandboxProvider | None]:
    """The configured back end; None when the configuration has none."""
    if config.settings.sandbox.backend == "none":
        yield None
        return
    if config.settings.sandbox.backend == "e2b":
        async with e2b(config, instance_id) as remote:
            yield remote
        return
    async with podman(config, root, instance_id) as provider:
        yield provider


@asynccontextmanager
async def e2b(config: Config, instance_id: str) -> AsyncIterator[E2BProvider]:
    """The E2B back end. The service is not asked before it is used."""
    from milepost.sandboxes.e2b.provider import E2BProvider
    from milepost.sandboxes.e2b.settings import E2BSettings

    section = config.settings.sandbox.e2b
    settings = E2BSettings(
        key=lambda: config.secrets.resolve(section.api_key),
        template=section.template,
        domain=section.domain,
        api_url=section.api_url,
        sandbox_url=section.sandbox_url,
        timeout_seconds=section.timeout_seconds,
        request_seconds=section.request_seconds,
        upload_bytes=int(section.upload_bytes),
    )
    provider = E2BProvider(settings, instance_id, lease=worker_name())
    try:
        yield provider
    finally:
        await provider.close()


@asynccontextmanager
async def podman(config: Config, root: DataRoot, instance_id: str) -> AsyncIterator[PodmanProvider]:
    """The Podman back end. Nothing is started before it is used."""
    from milepost.sandboxes.podman.provider import DEFAULT_IMAGE, PodmanProvider

    section = config.settings.sandbox
    provider = PodmanProvider(
        root.path,
        instance_id,
        socket=config.podman_socket,
        image=section.image or DEFAULT_IMAGE,
        images=section.images,
        allow_unenforced=section.allow_unenforced_limits,
        lease=worker_name(),
        environment=podman_environment(),
    )
    try:
        yield provider
    finally:
        await provider.close()


async def build_image(config: Config, root: DataRoot, say: Callable[[str], None], *, force: bool) -> ImageInfo:
    """Build the local default image unless it is up to date. Raises SandboxUnavailable with the exact fix."""
    root.prepare()
    async with podman(config, root, "image-build") as provider:
        return await provider.build_image(say, force=force)


async def examine_sandbox(config: Config, root: DataRoot) -> list[Check]:
    """Every requirement of sandboxes on this machine, tried for real, with the exact fix. Raises StorageUnavailable."""
    section = config.settings.sandbox
    if section.backend == "none":
        return [Check("sandbox", True, "Off by configuration: Sessions have no tools that need a sandbox.")]
    root.prepare()
    if section.backend == "e2b":
        async with e2b(config, "doctor") as remote:
            return await _examine_remote(remote)
    async with podman(config, root, "doctor") as provider:
        found = await provider.examine(network=section.network, allow_unenforced=section.allow_unenforced_limits)
    return [Check(each.name, each.ok, each.detail, each.fix) for each in found]


async def _examine_remote(provider: E2BProvider) -> list[Check]:
    """Whether the service answers, and one sandbox for real: made of the template, used, killed."""
    health = await provider.check()
    found = [Check("service", health.ok, health.detail, health.fix)]
    if not health.ok:
        return found
    with tempfile.TemporaryDirectory(prefix="milepost-doctor-") as folder:
        session = f"doctor-{uuid.uuid4().hex[:12]}"
        try:
            sandbox = await provider.open(SandboxSpec(session, provider.instance_id, folder))
            outcome = await sandbox.perform(f"{session}/look", Exec("uname -sr", timeout=30))
            text = f"made, and a command ran in it: {outcome.stdout.decode(errors='replace').strip()}."
            found.append(Check("sandbox", outcome.exit_code == 0, text))
        except MilepostError as error:
            found.append(Check("sandbox", False, error.message, error.fix))
        finally:
            with contextlib.suppress(SandboxUnavailable):
                await provider.destroy(session)
    return found


def environment_rules(config: Config) -> EnvironmentRules:
    """What the configuration says about environments."""
    section = config.settings.sandbox
    if section.backend == "e2b":
        from milepost.sandboxes.e2b.provider import refuse_image

        return EnvironmentRules(
            check_image=refuse_image,
            devcontainer_runs=section.setup.devcontainer == "run",
            networked=section.network != "none",
            images=False,
        )
    trusted = {*section.images.values(), *([section.image] if section.image else [])}
    return EnvironmentRules(
        check_image=lambda image: check_image(image, trusted, any_image=section.allow_untrusted_images),
        devcontainer_runs=section.setup.devcontainer == "run",
        networked=section.network != "none",
    )


def spec_of(config: Config, root: DataRoot, instance_id: str, session: Session) -> SandboxSpec:
    """What the Session's sandbox is made of.

    Raises:
        SandboxUnavailable: the Workspace's path leads elsewhere by now, or the Workspace and the data root, which no
            agent may see, lie in each other.
    """
    workspace = Path(session.workspace.path)
    leads_to, data = Path(os.path.realpath(workspace)), root.path.resolve()
    if leads_to != workspace:
        raise SandboxUnavailable(
            f"The Workspace {workspace} leads to {leads_to} by now: a symbolic link was put into its path.",
            fix="Look at who made the link. Then remove it, or open a Session on another folder.",
        )
    if data.is_relative_to(workspace) or workspace.is_relative_to(data):
        raise SandboxUnavailable(
            f"The Workspace {workspace} and Milepost's own data root {root.path}, which no agent may see, lie in each "
            "other.",
            fix="Open the Session on another folder, or set MILEPOST_HOME to one outside of it.",
        )
    section = config.settings.sandbox
    return SandboxSpec(
        session_id=session.session_id,
        instance_id=instance_id,
        workspace_path=session.workspace.path,
        image=session.image or (section.image if section.backend == "podman" else None),
        network=section.network,
        limits=limits_of(section.limits),
        environment=config.sandbox_environment,
    )


def limits_of(section: LimitsSection) -> SandboxLimits:
    """The configured limits of a sandbox."""
    return SandboxLimits(
        memory_bytes=int(section.memory),
        cpus=section.cpus,
        pids=section.pids,
        workspace_bytes=int(section.workspace),
        volume_bytes=int(section.volume),
        free_bytes=int(section.free_disk),
    )
