"""What a setup command installs outlives its container, belongs to its generation, and goes with it."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from milepost.domain.errors import InvalidInput, SandboxUnavailable
from milepost.ports.sandbox import Exec, Sandbox, SandboxSpec, Volume
from milepost.sandboxes.podman.provider import PodmanProvider

pytestmark = pytest.mark.podman


async def sh(box: Sandbox, command: str) -> str:
    outcome = await box.perform(uuid.uuid4().hex, Exec(command))
    assert outcome.exit_code == 0, outcome
    return outcome.stdout.decode()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def spec_of(podman: PodmanProvider, workspace: Path, **changes: object) -> SandboxSpec:
    volumes = frozenset({Volume.HOME, Volume.NODE_MODULES})
    made = SandboxSpec("s", podman.instance_id, str(workspace), volumes=volumes)
    return replace(made, **changes)  # type: ignore[arg-type]


async def test_volumes_outlive_containers_and_end_with_their_generation(podman: PodmanProvider, tmp_path: Path) -> None:
    workspace = tmp_path / "work"
    (workspace / "node_modules").mkdir(parents=True)
    (workspace / "node_modules" / "of-the-host").touch()
    first = spec_of(podman, workspace)
    box = await podman.open(first)
    await sh(box, "cd ~ && mkdir -p .venv/bin && echo echo installed > .venv/bin/tool && chmod +x .venv/bin/tool")
    assert await sh(box, "ls node_modules; touch node_modules/inside; tool") == "installed\n"
    await podman.remove("s")
    kept = await podman.open(replace(first, fresh=False))
    assert await sh(kept, "ls node_modules; tool") == "inside\ninstalled\n"
    assert names(workspace / "node_modules") == ["of-the-host"], "the host's modules are hidden, not touched"
    kinds = sorted(holding.kind for holding in await podman.holdings())
    assert kinds == ["container", "volume", "volume"]
    second = await podman.open(replace(first, generation=2))
    assert await sh(second, "ls -A node_modules ~") == "/home/agent:\n\nnode_modules:\n"
    await podman.destroy("s")
    assert await podman.holdings() == ()


async def test_what_was_prepared_and_is_gone_is_not_made_anew(podman: PodmanProvider, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="is gone") as refused:
        await podman.open(spec_of(podman, tmp_path, fresh=False))
    assert "milepost env rebuild s" in str(refused.value)
    await podman.destroy("s")


async def test_a_mountpoint_is_the_workspace_owners_and_no_link(podman: PodmanProvider, tmp_path: Path) -> None:
    workspace, outside = tmp_path / "work", tmp_path / "outside"
    workspace.mkdir(mode=0o700)
    outside.mkdir()
    os.chown(workspace, 12_345, 12_346) if os.getuid() == 0 else None
    await sh(await podman.open(spec_of(podman, workspace)), "touch node_modules/x f")
    found = (workspace / "node_modules").stat()
    assert (found.st_uid, found.st_gid) == (workspace.stat().st_uid, workspace.stat().st_gid)
    await podman.destroy("s")
    (workspace / "node_modules").rmdir()
    (workspace / "node_modules").symlink_to(outside)
    with pytest.raises(InvalidInput, match="not a directory"):
        await podman.open(spec_of(podman, workspace))
    assert names(outside) == []
    await podman.destroy("s")
