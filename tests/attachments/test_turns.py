"""Files from upload to the wire of a provider, through Temporal, which never sees them."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from temporalio.api.history.v1 import History

from milepost.bootstrap.system import SystemClock, UuidIds
from milepost.domain.agents import AgentConfig
from milepost.domain.attachments import Attachment, AttachmentScope, AttachmentState
from milepost.domain.events import AgentStarted, ToolFinished
from milepost.domain.providers import EndpointProfile, OpenAICompatibleProvider
from milepost.domain.turns import TurnState
from milepost.extraction import Limits, ProcessExtractor
from milepost.providers.gateway import Gateway
from milepost.services.attachments import AttachmentService, NewFile
from milepost.storage import FileBlobStore
from milepost.temporal.client import TemporalAddress
from tests.attachments import files
from tests.attachments.conftest import in_pieces
from tests.support.databases import OpenLedger
from tests.support.openai_server import OpenAIServer, Reply
from tests.support.temporal import Stack, build_stack
from tests.turns.conftest import NoSecrets
from tests.turns.test_turns import events_of

Make = Callable[[bool], Awaitable[Stack]]


@pytest.fixture
async def make_stack(
    opened: OpenLedger, model_server: OpenAIServer, temporal_address: TemporalAddress, tmp_path: Path
) -> AsyncIterator[Make]:
    gateways: list[Gateway] = []

    async def make(images: bool) -> Stack:
        profile = EndpointProfile(supports_images=images)
        provider = OpenAICompatibleProvider("house", model_server.base_url, "fake-small", profile=profile)
        gateway = Gateway({"house": provider}, NoSecrets())
        gateways.append(gateway)
        agents = {"default": AgentConfig("default", "house", "fake-small")}
        blobs = FileBlobStore(tmp_path / "blobs")
        return await build_stack(opened.ledger, opened.notifier, blobs, gateway, None, temporal_address, agents)

    yield make
    for gateway in gateways:
        await gateway.close()


async def attach(stack: Stack, session: str, name: str, data: bytes, scope: str = "once") -> Attachment:
    parts = stack.parts
    extractor = ProcessExtractor(Limits(ocr=False))
    service = AttachmentService(parts.ledger, parts.contents, SystemClock(), UuidIds(), extractor)
    return await service.attach(NewFile(session, name, AttachmentScope(scope)), in_pieces(data))


async def history_of(stack: Stack, workflow_id: str) -> tuple[bytes, int]:
    """All of a workflow's history, and the size of its largest event."""
    found = await stack.client.get_workflow_handle(workflow_id).fetch_history()
    return History(events=found.events).SerializeToString(), max(event.ByteSize() for event in found.events)


@pytest.mark.slow
async def test_a_large_image_reaches_the_model_and_never_temporal(
    make_stack: Make, model_server: OpenAIServer, tmp_path: Path
) -> None:
    stack = await make_stack(True)
    session = await stack.open(tmp_path)
    photo = files.noise(5_000_000)
    small = files.picture(text="sign")
    large = await attach(stack, session, "photo.png", photo)
    await attach(stack, session, "sign.png", small, "session")
    assert len(photo) > 5_000_000 and large.ref.blob.size == len(photo) and large.ref.image is not None
    model_server.plan(Reply(text="A photo and a sign."), Reply(text="Still there."))
    async with stack.worker():
        first = await stack.ended((await stack.send(session, "What is this?")).turn.turn_id)
        second = await stack.ended((await stack.send(session, "And now?")).turn.turn_id)
    assert (first.state, second.state) == (TurnState.COMPLETED, TurnState.COMPLETED), first.error_message
    (asked, again) = [seen.body["messages"] for seen in model_server.chats]
    content = next(message for message in asked if message["role"] == "user")["content"]
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    head, sent = urls[0].split(",")
    assert head == "data:image/jpeg;base64" and 100_000 < len(base64.b64decode(sent)) == large.ref.image.size
    assert base64.b64decode(urls[1].split(",")[1]) == small
    # The next turn has the same beginning, and neither file a second time.
    assert next(message for message in again if message["role"] == "user")["content"] == content
    assert json.dumps(again).count("base64,") == 2
    for turn in (first, second):
        history, largest = await history_of(stack, turn.workflow_id)
        assert len(history) < 64 * 1024 and largest < 16 * 1024
        assert b"photo.png" not in history and large.ref.blob.digest.encode() not in history


async def test_a_model_that_takes_no_images_is_told_of_them(
    make_stack: Make, model_server: OpenAIServer, tmp_path: Path
) -> None:
    stack = await make_stack(False)
    session = await stack.open(tmp_path)
    await attach(stack, session, "sign.png", files.picture(text="sign"))
    await attach(stack, session, "long.txt", "".join(f"{n:06}\n" for n in range(8_000)).encode())
    read = {"name": "read_attachment", "arguments": json.dumps({"name": "long.txt", "offset": 55_993, "limit": 50})}
    model_server.plan(Reply(text="I read on.", calls=[read]), Reply(text="Done."))
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "Look at both")).turn.turn_id)
    assert turn.state is TurnState.COMPLETED, turn.error_message
    asked = json.dumps(model_server.chats[0].body["messages"])
    assert "base64," not in asked and "sign.png" in asked and "was left out" in asked
    assert "reads on from offset 32000" in asked
    events = await events_of(stack, session)
    (started,) = [event for event in events if isinstance(event, AgentStarted)]
    assert "read_attachment" in [tool.name for tool in started.tools]
    (finished,) = [event for event in events if isinstance(event, ToolFinished)]
    assert not finished.is_error and finished.output.text.startswith("007999\n\n['long.txt', characters 55993-55999")
    notes = (await stack.history.entry(turn.turn_id)).agents[0].notes
    assert any("takes no images; 1 left out" in note for note in notes)


@pytest.mark.slow
async def test_the_tool_is_offered_where_there_are_files(
    make_stack: Make, model_server: OpenAIServer, tmp_path: Path
) -> None:
    stack = await make_stack(True)
    session = await stack.open(tmp_path)
    model_server.plan(Reply(text="Nothing."))
    async with stack.worker():
        turn = await stack.ended((await stack.send(session, "hello")).turn.turn_id)
    assert turn.state is TurnState.COMPLETED
    (started,) = [event for event in await events_of(stack, session) if isinstance(event, AgentStarted)]
    assert "read_attachment" not in [tool.name for tool in started.tools]
    broken = await attach(stack, session, "broken.pdf", b"%PDF-1.7 and nothing more")
    assert broken.ref.state is AttachmentState.FAILED
