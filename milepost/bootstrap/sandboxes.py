"""The sandbox back end of this instance, and what a Session's sandbox is made of."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from milepost.bootstrap.data_root import DataRoot
from milepost.config.loading import Config
from milepost.domain.errors import SandboxUnavailable
from milepost.domain.sessions import Session
from milepost.ports.sandbox import SandboxLimits, SandboxProvider, SandboxSpec


@asynccontextmanager
async def open_sandboxes(config: Config, root: DataRoot) -> AsyncIterator[SandboxProvider | None]:
    """The configured back end; None when the configuration has none."""
    if config.settings.sandbox.backend == "none":
        yield None
        return
    from milepost.sandboxes import PodmanProvider

    provider = PodmanProvider()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(provider.close)
        yield provider


def spec_of(config: Config, root: DataRoot, instance_id: str, session: Session) -> SandboxSpec:
    """What the Session's sandbox is made of.

    Raises:
        SandboxUnavailable: the Workspace holds the data root, which no agent may see.
    """
    workspace = Path(session.workspace.path)
    if root.path.resolve().is_relative_to(workspace):
        raise SandboxUnavailable(
            f"The Workspace {workspace} holds Milepost's own data root {root.path}, which no agent may see.",
            fix="Open the Session on another folder, or set MILEPOST_HOME to one outside of it.",
        )
    section = config.settings.sandbox
    return SandboxSpec(
        session_id=session.session_id,
        instance_id=instance_id,
        workspace_path=session.workspace.path,
        image=session.image or section.image,
        network=section.network,
        limits=SandboxLimits(int(section.limits.memory), section.limits.cpus, section.limits.pids),
        environment=config.sandbox_environment,
    )
