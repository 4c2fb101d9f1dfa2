"""Git work over a real repository: the supervisor runs in plain namespaces on the Workspace's folder."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.agents import AgentConfig
from milepost.ports.sandbox import SandboxSpec
from milepost.services.contents import Contents
from milepost.services.git import GitService
from milepost.services.sessions import OpenSession, SessionService
from milepost.services.workbench import Workbench
from milepost.storage import FileBlobStore
from tests.sandbox.boxes import LocalSandboxes, require_namespaces
from tests.support.databases import OpenLedger

ME = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")


@dataclass
class Repository:
    """A Session's folder, as the test sees it. `git` is this machine's, which the test trusts with its own files."""

    folder: Path
    session_id: str
    service: GitService
    ledger: OpenLedger

    def git(self, *arguments: str, fine: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(["git", *ME, *arguments], cwd=self.folder, capture_output=True, check=False)
        assert done.returncode in fine, done.stderr
        return done.stdout.decode("utf-8", "surrogateescape")

    def apply(self, patch: bytes) -> None:
        subprocess.run(["git", "apply", "-"], cwd=self.folder, input=patch, check=True)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def committed(self, name: str, text: str) -> Path:
        path = self.write(name, text)
        self.git("add", "-A")
        self.git("commit", "-qm", f"add {name}")
        return path


@pytest.fixture
async def plain(opened: OpenLedger, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Repository]:
    """A Session on a folder that is no repository."""
    require_namespaces()
    folder = tmp_path_factory.mktemp("repository")
    sandboxes = LocalSandboxes()
    sessions = SessionService(
        opened.ledger, SystemClock(), UuidIds(), {"default": AgentConfig("default", "scripted", "demo")}, "default"
    )
    session = await sessions.open(OpenSession(str(folder)))

    def spec(_: object) -> SandboxSpec:
        return SandboxSpec(session.session_id, opened.ledger.instance_id, str(folder))

    workbench = Workbench(sandboxes, spec)
    contents = Contents(FileBlobStore(tmp_path_factory.mktemp("blobs")))
    service = GitService(opened.ledger, SystemClock(), contents, workbench, "host")
    yield Repository(folder, session.session_id, service, opened)
    await sandboxes.close()


@pytest.fixture
def repository(plain: Repository) -> Repository:
    plain.git("init", "-q", "-b", "main")
    return plain
