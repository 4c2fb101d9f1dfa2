"""Instances with Sessions, blobs, snapshots and a configuration, on either database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from milepost.bootstrap.data_root import DataRoot
from milepost.config.loading import Config, load_config
from milepost.domain.content import BlobRef
from milepost.ports.ledger import Ledger
from milepost.services.contents import Contents
from milepost.snapshots import GitSnapshots
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from tests.history.build import Builder, Call, Said
from tests.support.postgres_server import PostgresServer

PROVIDER = "providers: {house: {type: openai, api_key: 'env:HOUSE_KEY', model: m}}\n"


@dataclass(frozen=True)
class Instance:
    """A data root and its database; nothing of it runs."""

    config: Config
    root: DataRoot

    @property
    def contents(self) -> Contents:
        return Contents(FileBlobStore(self.root.blobs))

    @asynccontextmanager
    async def ledger(self) -> AsyncIterator[Ledger]:
        notifier = await open_notifier(self.config.database_url())
        ledger = await open_ledger(self.config.database_url(), notifier)
        try:
            yield ledger
        finally:
            await ledger.close()
            await notifier.close()

    def blob(self, ref: BlobRef) -> Path:
        return self.root.blobs / ref.digest[:2] / ref.digest

    async def fill(self, folder: Path) -> Filled:
        """A Session with an ended turn that has a blob, and one with a running turn."""
        snapshots = GitSnapshots(self.root.snapshots)
        tree = (await snapshots.take("wsp_1", folder)).tree
        output = await self.contents.store("x\0\ud800" * 100_000)
        assert output.blob is not None
        async with self.ledger() as ledger:
            builder = Builder(ledger)
            session = await builder.session("First")
            await builder.turn(session, Said("do it \0\ud800", calls=[Call("bash", "{}", output)]))
            running = await builder.session("Second")
            turn = await builder.turn(running, Said("and this", ending=None))
            workspace = (await ledger.read(lambda tx: tx.sessions.get(session))).workspace.workspace_id
            await ledger.write(lambda tx: tx.workspaces.move_head(workspace, tree, None))
        return Filled(session, running, turn, output.blob, tree)


@dataclass(frozen=True)
class Filled:
    session: str
    running_session: str
    running_turn: str
    blob: BlobRef
    tree: str


Make = Callable[[str, str], Instance]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A Workspace's folder with a file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    return folder


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Make]:
    """`make(name, kind)`: the folder of an instance beside an empty database of this kind."""
    databases: list[tuple[PostgresServer, str]] = []

    def instance(name: str, kind: str) -> Instance:
        root = DataRoot(tmp_path / name)
        root.prepare()
        file = tmp_path / f"{name}.yaml"
        file.write_text(PROVIDER)
        monkeypatch.setenv("MILEPOST_HOME", str(root.path))
        monkeypatch.delenv("MILEPOST_DATABASE__URL", raising=False)
        if kind == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            database = server.create_database()
            databases.append((server, database))
            monkeypatch.setenv("MILEPOST_DATABASE__URL", "env:BACKUP_TEST_" + name.upper())
            monkeypatch.setenv("BACKUP_TEST_" + name.upper(), server.url(database))
        return Instance(load_config(file), root)

    yield instance
    for server, database in databases:
        server.drop_database(database)
