"""The services of attachments over each database, without Temporal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.agents import AgentConfig
from milepost.domain.attachments import Attachment, AttachmentScope, AttachmentState
from milepost.domain.messages import UserMessage
from milepost.domain.turns import Turn
from milepost.ports.extraction import Extracted
from milepost.ports.ledger import Ledger
from milepost.services.attachments import AttachmentService, NewFile
from milepost.services.contents import Contents
from milepost.services.exporting.service import ExportService
from milepost.services.importing.service import ImportService
from milepost.services.search import SearchService
from milepost.services.turns import BeginTurn, TurnService
from milepost.storage import FileBlobStore
from tests.api.stack import AGENT, validate_route
from tests.rewind.conftest import Bench, make_bench
from tests.support.databases import OpenLedger


class TextExtractor:
    """Reads every file as the text it is, in this process; what `answers` has for a name it gives instead."""

    def __init__(self) -> None:
        self.answers: dict[str, Extracted] = {}
        self.calls: list[str] = []

    async def extract(self, pieces: AsyncIterable[bytes], name: str) -> Extracted:
        self.calls.append(name)
        data = b"".join([piece async for piece in pieces])
        known = self.answers.get(name)
        return known or Extracted(AttachmentState.READY, "text/plain", data.decode("utf-8", "replace"))


@dataclass
class Files:
    """Everything a test of attachments drives, over one ledger."""

    bench: Bench
    attachments: AttachmentService
    extractor: TextExtractor
    contents: Contents
    search: SearchService
    exports: ExportService
    imports: ImportService
    root: Path

    async def attach(
        self, session: str, name: str, data: bytes = b"content", scope: str = "once", *, wait: bool = True
    ) -> Attachment:
        file = NewFile(session, name, AttachmentScope(scope))
        return await self.attachments.attach(file, in_pieces(data), wait=wait)

    async def begin(self, session: str, text: str = "look") -> Turn:
        return (await self.bench.turns.begin(BeginTurn(session, text))).turn

    async def turn(self, session: str, text: str = "look") -> Turn:
        """A whole turn."""
        turn = await self.begin(session, text)
        await self.bench.work(session, turn.turn_id, f"answer to {text}", None)
        return (await self.bench.turns.get(turn.turn_id)).turn

    async def given(self, session: str, text: str = "next") -> list[UserMessage]:
        """The requests as the model of a further turn gets them; that turn stays running."""
        turn_id = await self.bench.begin(session, text)
        context = await self.bench.conversations.whole(turn_id, AGENT, 1)
        return [message for message in context.messages if isinstance(message, UserMessage)]

    async def selected(self, session: str) -> list[str]:
        return [item.ref.name for item in await self.attachments.selected(session)]

    def blobs(self) -> int:
        return sum(1 for path in (self.root / "blobs").glob("??/*"))


def names(turn: Turn) -> list[str]:
    return [ref.name for ref in turn.request.attachments]


async def in_pieces(data: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(data), 64 * 1024):
        yield data[start : start + 64 * 1024]


@pytest.fixture
def files(opened: OpenLedger, tmp_path: Path) -> Files:
    return make_files(opened.ledger, tmp_path)


def make_files(ledger: Ledger, root: Path) -> Files:
    """The services over a ledger, with blobs and a Workspace in `root`."""
    clock, ids = SystemClock(), UuidIds()
    bench = make_bench(ledger, root)
    contents = Contents(FileBlobStore(root / "blobs"))
    extractor = TextExtractor()
    attachments = AttachmentService(ledger, contents, clock, ids, extractor)
    agents = {AGENT: AgentConfig(AGENT, "scripted", "demo")}
    bench.turns = TurnService(ledger, contents, clock, ids, agents, validate_route, attachments.settled)
    return Files(
        bench,
        attachments,
        extractor,
        contents,
        SearchService(ledger),
        ExportService(ledger, contents, clock, "0.1.0"),
        ImportService(ledger, contents, clock, ids),
        root,
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The default run sees these on SQLite alone, the slow one on PostgreSQL too."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("postgres") is not None:
            item.add_marker(pytest.mark.slow)
