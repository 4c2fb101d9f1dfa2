"""Checkpoints: what a model gets is the same with any of them and without, and no damage or kill changes that."""

from __future__ import annotations

import json
import stat
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from activities import conversation
from activities.conversation import Conversations
from milepost.bootstrap.system import UuidIds
from milepost.domain.attachments import AttachmentRef, AttachmentState
from milepost.domain.checkpoints import KEPT, Checkpoint, CheckpointPolicy, Segment
from milepost.domain.content import BlobRef, Content
from milepost.domain.errors import CheckpointUnusable
from milepost.domain.events import LATE_EVENTS
from milepost.domain.memory import Scope
from milepost.domain.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    ProviderState,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from milepost.domain.usage import UNKNOWN_USAGE, Usage
from milepost.ledger import checkpoint as form
from milepost.ledger.checkpoint import decode_checkpoint, read_checkpoint, segment_line, write_checkpoint
from milepost.ledger.codec import to_json
from milepost.ledger.messages import read_messages
from milepost.ledger.transcript import TRANSCRIPT_EVENTS
from milepost.memory.checkpoint_files import CheckpointFiles
from milepost.ports.ledger import Ledger
from milepost.ports.notifier import Notifier
from milepost.services import checkpointing, checkpoints
from milepost.services.checkpoint_files import useless
from milepost.services.checkpoints import CheckpointSettings
from milepost.services.contents import Contents
from milepost.services.history import HistoryService
from milepost.services.rewinds import RewindService, RewindTo
from milepost.storage import FileBlobStore, open_ledger, open_notifier
from tests.support.databases import OpenLedger
from tests.support.driven import AGENT, Driver, SteppingClock

FILES = (
    AttachmentRef("att", "a.png", BlobRef("ef", 5, "image/png"), AttachmentState.READY),
    AttachmentRef(
        "att",
        "b.pdf",
        BlobRef("01", 6, "application/pdf"),
        AttachmentState.PARTIAL,
        text=BlobRef("23", 7, "text/plain"),
        image=BlobRef("45", 8, "image/png"),
        note="cut",
    ),
)
MESSAGES: tuple[Message, ...] = (
    UserMessage(
        Content("hé\ud800\0\n\t"), (ImagePart(BlobRef("ab", 3, "image/png"), "a picture"),), "be\nfore", FILES, "after"
    ),
    AssistantMessage(
        (
            ReasoningPart("why"),
            TextPart("so"),
            ToolCallPart("id", "bash", Content("{}", BlobRef("cd", 4, "x/y")), True),
        ),
        ProviderState("p", "m", Content("state")),
    ),
    ToolMessage("id", "bash", Content("out"), is_error=True),
)


class Bench:
    """Turns over one ledger, read by conversations of processes that come and go."""

    def __init__(self, ledger: Ledger, notifier: Notifier, folder: Path) -> None:
        self.ledger = ledger
        self._notifier = notifier
        self.folder = folder
        self.store = CheckpointFiles(folder / "checkpoints" / "v1")
        self.session = ""
        self.driver = self.process()

    def process(self, settings: CheckpointSettings | None = None, *, store: bool = True) -> Driver:
        """A process that knows nothing yet."""
        self.driver = Driver(
            self.ledger,
            self._notifier,
            self.folder,
            lambda: 200,
            seed=len(list(self.folder.iterdir())),
            checkpoints=self.store if store else None,
            checkpoint_settings=settings,
        )
        return self.driver

    async def turns(self, count: int) -> None:
        self.session = self.session or await self.driver.open()
        for _ in range(count):
            await self.driver.turn(self.session)
        await self.driver.conversations.close()

    async def next_turn(self) -> str:
        turn = await self.driver.begin(self.session)
        await self.driver.prepare(self.session, turn)
        return turn

    async def projected(self, turn: str) -> tuple[Message, ...]:
        """What the ledger alone says."""
        plain = Conversations(self.ledger, Contents(FileBlobStore(self.folder / "blobs")))
        return (await plain.whole(turn, AGENT, 1)).messages

    def paths(self) -> list[Path]:
        """Newest first."""
        return sorted((self.folder / "checkpoints").rglob("*.checkpoint"), reverse=True)


@pytest.fixture
async def bench(sqlite_url: str, tmp_path: Path) -> AsyncIterator[Bench]:
    notifier = await open_notifier(sqlite_url)
    ledger = await open_ledger(sqlite_url, notifier)
    yield Bench(ledger, notifier, tmp_path)
    await ledger.close()
    await notifier.close()


async def test_either_database(opened: OpenLedger, tmp_path: Path) -> None:
    bench = Bench(opened.ledger, opened.notifier, tmp_path)
    await bench.turns(3)
    bench.process()
    turn = await bench.next_turn()
    context = await bench.driver.conversations.whole(turn, AGENT, 1)
    assert context.messages == await bench.projected(turn)
    assert context.earlier is not None and context.earlier.read == 1


def _checkpoint(*segments: Segment) -> Checkpoint:
    return Checkpoint("ses", "a:b", "", 7, "00" * 32, 5, Usage(1, 2, 3, 4) + UNKNOWN_USAGE, 0, segments)


def test_a_checkpoint_survives_its_file_form() -> None:
    made = _checkpoint(Segment("t1", 1, 10, MESSAGES), Segment("t2", 3, 20, MESSAGES[:1], ended=False))
    data = write_checkpoint(made, [segment_line(segment) for segment in made.segments])
    found = decode_checkpoint(read_checkpoint(data))
    assert found == made
    assert not found.usage.complete and found.usage.input_tokens == 1, "an unknown part makes a known subtotal"


def test_every_field_of_a_message_is_read() -> None:
    """A field that is added to one of these must be added to `ledger/messages.py` and to `MESSAGES`."""
    parts = (ImagePart, ProviderState, TextPart, ReasoningPart, ToolCallPart)
    kinds = (UserMessage, AssistantMessage, ToolMessage, *parts)
    assert {kind.__name__: len(fields(kind)) for kind in (*kinds, Content, BlobRef, AttachmentRef)} == {
        "UserMessage": 6,
        "AssistantMessage": 3,
        "ToolMessage": 5,
        "ImagePart": 3,
        "ProviderState": 3,
        "TextPart": 2,
        "ReasoningPart": 2,
        "ToolCallPart": 5,
        "Content": 2,
        "BlobRef": 3,
        "AttachmentRef": 7,
    }
    assert read_messages([to_json(message) for message in MESSAGES]) == MESSAGES
    with pytest.raises(KeyError):
        read_messages([{"kind": "assistant", "provider_state": None, "parts": [{"kind": "other"}]}])


def test_every_changed_byte_is_noticed() -> None:
    made = _checkpoint(Segment("t1", 1, 10, MESSAGES[2:]))
    data = write_checkpoint(made, [segment_line(segment) for segment in made.segments])
    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(CheckpointUnusable):
            assert decode_checkpoint(read_checkpoint(damaged)) != made
    for end in range(len(data)):
        with pytest.raises(CheckpointUnusable):
            read_checkpoint(data[:end])


def test_other_versions_and_projections_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _checkpoint()
    data = write_checkpoint(made, [])
    later = data.replace(b'"version":1', b'"version":2')
    with pytest.raises(CheckpointUnusable, match="another release"):
        read_checkpoint(later)
    monkeypatch.setattr(form, "PROJECTION", form.PROJECTION + 1)
    with pytest.raises(CheckpointUnusable, match="another release"):
        read_checkpoint(data)


def test_what_a_model_gets_of_an_ended_turn_never_changes() -> None:
    assert not {event.TYPE for event in LATE_EVENTS} & set(TRANSCRIPT_EVENTS)


def test_files_are_private_and_the_newest_three_are_kept(tmp_path: Path) -> None:
    store = CheckpointFiles(tmp_path / "checkpoints" / "v1")
    for seq in (5, 30, 7, 200, 9):
        store.write("k", seq, b"x")
    assert [file.seq for file in store.files("k")] == [200, 30, 9]
    assert KEPT == 3
    folder = tmp_path / "checkpoints" / "v1" / "k"
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent, folder.parent.parent)} == {0o700}
    for file in store.files("k"):
        store.discard(file)
        store.discard(file)
    assert not folder.exists() and store.files("k") == []


def test_what_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    store = CheckpointFiles(tmp_path / "v1")
    store.write("k", 1, b"x")
    (file,) = store.files("k")
    path = tmp_path / "v1" / "k" / f"{1:016d}.checkpoint"
    path.chmod(0o620)
    with pytest.raises(CheckpointUnusable, match="others"):
        store.read(file)
    other = tmp_path / "other"
    path.rename(other)
    other.chmod(0o600)
    path.symlink_to(other)
    assert store.files("k") == []
    with pytest.raises(CheckpointUnusable):
        store.read(file)


async def test_a_new_process_begins_with_the_checkpoint(bench: Bench) -> None:
    await bench.turns(4)
    driver = bench.process()
    turn = await bench.next_turn()
    context = await driver.conversations.whole(turn, AGENT, 1)
    assert context.messages == await bench.projected(turn)
    assert context.earlier is not None and context.earlier.read == 1, "only the turn that was running is read again"
    assert context.notes == ()


async def test_it_holds_the_conversation_after_each_answer(bench: Bench) -> None:
    await bench.turns(2)
    assert len(bench.paths()) == KEPT
    found = decode_checkpoint(read_checkpoint(bench.paths()[0].read_bytes()))
    turn = await bench.next_turn()
    assert [message for segment in found.segments for message in segment.messages] == list(
        (await bench.projected(turn))[:-1]
    )
    assert found.usage.total_tokens == 2 * 2 * 15 and found.usage.complete
    assert [segment.ended for segment in found.segments] == [True, False]


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        (CheckpointSettings(CheckpointPolicy.EVERY_N, 4), 1),
        (CheckpointSettings(CheckpointPolicy.MANUAL), 0),
        (CheckpointSettings(CheckpointPolicy.NONE), 0),
    ],
)
async def test_policies(bench: Bench, settings: CheckpointSettings, files: int) -> None:
    bench.process(settings)
    await bench.turns(3)
    assert len(bench.paths()) == files


@pytest.mark.slow
async def test_a_large_conversation_is_written_when_an_eighth_is_new(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SMALL_BYTES", 0)
    written: list[int] = []
    save = checkpointing.CheckpointKeeper.save

    def counted(keeper: checkpointing.CheckpointKeeper, checkpoint: Checkpoint) -> int:
        written.append(save(keeper, checkpoint))
        return written[-1]

    monkeypatch.setattr(checkpointing.CheckpointKeeper, "save", counted)
    await bench.turns(30)
    said = max(written)
    assert 8 < len(written) < 40, "of 60 answers"
    assert sum(written) < 16 * said
    bench.process()
    turn = await bench.next_turn()
    context = await bench.driver.conversations.whole(turn, AGENT, 1)
    assert context.earlier is not None and context.earlier.read <= 30 / 8 + 2
    assert context.messages == await bench.projected(turn)


async def test_damage_is_noted_and_an_older_one_brought_forward(bench: Bench) -> None:
    await bench.turns(4)
    newest = bench.paths()[0]
    newest.write_bytes(newest.read_bytes()[:-5])
    driver = bench.process()
    turn = await bench.next_turn()
    context = await driver.conversations.whole(turn, AGENT, 1)
    assert context.messages == await bench.projected(turn)
    assert len(context.notes) == 1 and "damaged" in context.notes[0]
    assert context.earlier is not None and context.earlier.read == 1
    assert not newest.exists()
    again = await driver.conversations.whole(turn, AGENT, 1)
    assert again.notes == context.notes
    await driver.answer(bench.session, turn)
    await driver.conversations.close()
    entry = (await HistoryService(bench.ledger).entry(turn)).agents[0]
    assert any("damaged" in note for note in entry.notes), "a person sees it in History"


async def test_without_a_usable_one_the_ledger_serves(bench: Bench) -> None:
    await bench.turns(4)
    for path in bench.paths():
        path.write_bytes(b"{}\n")
    driver = bench.process()
    turn = await bench.next_turn()
    context = await driver.conversations.whole(turn, AGENT, 1)
    assert context.messages == await bench.projected(turn)
    assert len(context.notes) == KEPT + 1
    assert bench.paths() == []


async def test_another_ledger_is_noticed(bench: Bench) -> None:
    await bench.turns(3)
    (newest, *rest) = bench.paths()
    for path in rest:
        path.unlink()
    body = read_checkpoint(newest.read_bytes())
    made = replace(decode_checkpoint(body), hash="11" * 32)
    newest.write_bytes(write_checkpoint(made, body.lines.values()))
    driver = bench.process()
    turn = await bench.next_turn()
    context = await driver.conversations.whole(turn, AGENT, 1)
    assert context.messages == await bench.projected(turn)
    assert "not the one" in context.notes[0]


@pytest.mark.parametrize("restart", [True, False])
async def test_a_rewind_counts_before_the_next_turn_whatever_the_files_say(bench: Bench, restart: bool) -> None:
    """Also if the process is killed right after the rewind was written: nothing else is needed."""
    await bench.turns(5)
    rewinds = RewindService(bench.ledger, SteppingClock(), UuidIds())
    await rewinds.rewind(RewindTo(bench.session, "test", number=2))
    if restart:
        bench.process()
    turn = await bench.next_turn()
    context = await bench.driver.conversations.whole(turn, AGENT, 1)
    assert context.messages == await bench.projected(turn)
    assert context.earlier is not None and [item.number for item in context.earlier.segments] == [1, 2]
    assert context.earlier.read == 0
    await bench.driver.answer(bench.session, turn)
    await bench.driver.conversations.close()
    newest = decode_checkpoint(read_checkpoint(bench.paths()[0].read_bytes()))
    assert [item.number for item in newest.segments] == [1, 2, 6], "it is repaired"


async def test_after_a_rewind_of_a_cut_conversation_older_turns_are_there_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "MAX_PROJECTED_TURNS", 3)
    await bench.turns(6)
    turn = await bench.next_turn()
    context = await bench.driver.conversations.whole(turn, AGENT, 1)
    assert isinstance(context.messages[0], UserMessage) and "number 3 are left out" in context.messages[0].text.text
    assert any("number 3 did not fit" in note for note in context.notes)
    await bench.driver.answer(bench.session, turn)
    rewinds = RewindService(bench.ledger, SteppingClock(), UuidIds())
    await rewinds.rewind(RewindTo(bench.session, "test", number=4))
    bench.process()
    turn = await bench.next_turn()
    context = await bench.driver.conversations.whole(turn, AGENT, 1)
    assert context.earlier is not None and [item.number for item in context.earlier.segments] == [2, 3, 4]
    assert context.messages == await bench.projected(turn)


async def test_whole_turns_within_the_bound_in_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.turns(6)
    turn = await bench.next_turn()
    full = await bench.driver.conversations.whole(turn, AGENT, 1)
    assert full.earlier is not None
    sizes = [segment.size for segment in full.earlier.segments]
    monkeypatch.setattr(conversation, "MAX_PROJECTED_BYTES", full.size + sum(sizes[-2:]) + 10)
    for driver in (bench.driver, bench.process(), bench.process(store=False)):
        context = await driver.conversations.whole(turn, AGENT, 1)
        assert context.earlier is not None
        assert [item.number for item in context.earlier.segments] == [5, 6]
        assert context.omitted == 4
        assert context.messages == await bench.projected(turn)


async def test_the_oldest_turns_are_left_out_of_a_file_that_would_be_too_large(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.turns(3)
    found = decode_checkpoint(read_checkpoint(bench.paths()[0].read_bytes()))
    lines = [segment_line(segment) for segment in found.segments]
    monkeypatch.setattr(checkpointing, "MAX_ENCODED_BYTES", len(lines[-1]) + len(lines[-2]) + 10 + 64 * 1024)
    keeper = checkpointing.CheckpointKeeper(bench.ledger, bench.store)
    keeper.save(replace(found, seq=found.seq + 1))
    newest = decode_checkpoint(read_checkpoint(bench.paths()[0].read_bytes()))
    assert [item.number for item in newest.segments] == [2, 3] and newest.omitted == 1


async def test_a_store_that_fails_stops_no_turn(bench: Bench) -> None:
    bench.folder.joinpath("checkpoints").write_text("in the way")
    await bench.turns(2)
    turn = await bench.next_turn()
    assert (await bench.driver.conversations.whole(turn, AGENT, 1)).messages == await bench.projected(turn)


def test_an_envelope_can_be_read_by_people() -> None:
    data = write_checkpoint(_checkpoint(), [])
    envelope = json.loads(data.partition(b"\n")[0])
    assert envelope["format"] == "milepost-checkpoint" and envelope["version"] == 1


async def test_a_collection_finds_what_no_turn_would_take(bench: Bench) -> None:
    await bench.turns(3)
    store = bench.store
    assert await useless(bench.ledger, store, store.keys()) == []
    foreign = write_checkpoint(_checkpoint(), [])
    store.write(Scope.agent("ses", "a:b").component, 7, foreign)
    store.write("elsewhere", 7, foreign)
    assert {file.key for file in await useless(bench.ledger, store, store.keys())} == {
        Scope.agent("ses", "a:b").component,
        "elsewhere",
    }
    rewinds = RewindService(bench.ledger, SteppingClock(), UuidIds())
    await rewinds.rewind(RewindTo(bench.session, "test", number=2))
    found = await useless(bench.ledger, store, [Scope.agent(bench.session, AGENT).component])
    kept = [file.seq for file in store.files(Scope.agent(bench.session, AGENT).component)]
    assert 0 < len(found) < len(kept), "those that end with a turn that counts are kept"
