"""Workspaces with real files, and snapshots of them with the real git."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from milepost.ports.snapshots import Snapshot
from milepost.snapshots import GitSnapshots
from tests.support.needs import unavailable


@pytest.fixture(autouse=True)
def needs_git() -> None:
    if shutil.which("git") is None:
        unavailable("git", "it is not installed")


@dataclass
class Bench:
    """One Workspace and its snapshots."""

    snapshots: GitSnapshots
    folder: Path
    root: Path

    async def take(self) -> str:
        return (await self.snapshots.take("wsp_1", self.folder)).tree

    async def snapshot(self) -> Snapshot:
        return await self.snapshots.take("wsp_1", self.folder)

    async def changed(self, before: str, after: str) -> list[str]:
        return [change.path for change in await self.snapshots.changes("wsp_1", before, after)]

    async def files(self, tree: str) -> list[str]:
        return await self.changed(await self.nothing(), tree)

    async def nothing(self) -> str:
        """The state without files."""
        repository = str(self.root / "snapshots" / "wsp_1.git")
        return git(self.root, "--git-dir", repository, "hash-object", "-w", "-t", "tree", "/dev/null").strip()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    folder = tmp_path / "project"
    folder.mkdir()
    return Bench(GitSnapshots(tmp_path / "snapshots"), folder, tmp_path)


def git(folder: Path, *arguments: str) -> str:
    """The person's own git, with a configuration of its own."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }
    command = ["git", "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True, timeout=60)
    return done.stdout.decode("utf-8", "surrogateescape")


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder, also git's own: mode and bytes; a link's target; "" for a folder."""
    found: dict[str, tuple[int, bytes]] = {}
    for root, folders, files in os.walk(folder):
        for name in [*files, *folders]:
            path = Path(root) / name
            status = path.lstat()
            if path.is_symlink():
                data = bytes(path.readlink())
            elif path.is_file():
                data = path.read_bytes()
            else:
                data = b""
            found[str(path.relative_to(folder))] = (status.st_mode, data)
    return found
