"""Which turn gets which file: scopes, retry, rewind, fork, removal, limits, and processes that are killed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from milepost.domain.attachments import MAX_SELECTED, Attachment, AttachmentState
from milepost.domain.errors import (
    AttachmentNotFound,
    IdempotencyMismatch,
    InvalidInput,
    PayloadTooLarge,
    SessionClosed,
    SessionNotFound,
    StorageUnavailable,
    TurnRunning,
)
from milepost.domain.events import AttachmentConsumed
from milepost.ledger.codec import decode_event
from milepost.services.attachments import AttachmentLimits, AttachmentService
from milepost.services.forks import ForkFrom
from milepost.services.rewinds import RewindTo
from milepost.services.turns import BeginTurn, RetryTurn
from tests.attachments.conftest import Files, names


async def consumed(files: Files, session: str, turn_id: str) -> list[AttachmentConsumed]:
    stored = await files.bench.ledger.read(
        lambda tx: tx.events.read_turn(session, turn_id, types=(AttachmentConsumed.TYPE,))
    )
    events = [decode_event(item.type, item.version, item.payload) for item in stored]
    return [event for event in events if isinstance(event, AttachmentConsumed)]


async def test_once_and_for_the_whole_session(files: Files) -> None:
    session = await files.bench.open()
    kept = await files.attach(session, "spec.md", b"the spec", "session")
    used = await files.attach(session, "screen.txt", b"the screen")
    assert await files.selected(session) == ["spec.md", "screen.txt"]
    assert kept.ref.state is AttachmentState.READY and kept.selected
    first = await files.turn(session)
    assert names(first) == ["spec.md", "screen.txt"]
    assert [ref.blob.size for ref in first.request.attachments] == [8, 10]
    told = await consumed(files, session, first.turn_id)
    assert [(event.name, event.text and event.text.text) for event in told] == [
        ("spec.md", "the spec"),
        ("screen.txt", "the screen"),
    ]
    assert (await files.attachments.get(used.ref.attachment_id)).used_by == first.turn_id
    assert await files.selected(session) == ["spec.md"]
    second = await files.turn(session)
    assert names(second) == ["spec.md"] and await consumed(files, session, second.turn_id) == []
    # Removed from the selection, it stays in what turns have had.
    removed = await files.attachments.remove(kept.ref.attachment_id)
    assert removed.removed_at is not None and await files.attachments.remove(kept.ref.attachment_id) == removed
    assert names(await files.turn(session)) == []
    assert names((await files.bench.turns.get(second.turn_id)).turn) == ["spec.md"]
    assert await files.attachments.text(kept.ref.attachment_id) == "the spec"
    assert await files.bench.verified() == []


async def test_a_refused_turn_uses_nothing_up(files: Files) -> None:
    session = await files.bench.open()
    await files.begin(session)
    await files.attach(session, "a.txt")
    with pytest.raises(TurnRunning):
        await files.begin(session)
    assert await files.selected(session) == ["a.txt"]


async def test_a_request_that_is_sent_again_is_the_same_turn(files: Files) -> None:
    session = await files.bench.open()
    await files.attach(session, "a.txt")
    request = BeginTurn(session, "look", idempotency_key="k")
    first = await files.bench.turns.begin(request)
    again = await files.bench.turns.begin(request)
    assert first.created and not again.created and again.turn == first.turn and names(again.turn) == ["a.txt"]
    with pytest.raises(IdempotencyMismatch):
        await files.bench.turns.begin(replace(request, text="something else"))


async def test_a_retry_gets_no_file_of_one_turn_again(files: Files) -> None:
    session = await files.bench.open()
    await files.attach(session, "spec.md", scope="session")
    await files.attach(session, "screen.txt")
    first = await files.turn(session)
    await files.attach(session, "next.txt")
    again = (await files.bench.turns.retry(RetryTurn(first.turn_id))).turn
    assert names(again) == ["spec.md"] and again.retry_of == first.turn_id
    assert names((await files.bench.turns.get(again.turn_id)).turn) == ["spec.md"]
    # What was meant for the next turn still is.
    assert await files.selected(session) == ["spec.md", "next.txt"]


async def test_a_rewind_selects_nothing_again(files: Files) -> None:
    session = await files.bench.open()
    await files.turn(session, "before")
    kept = await files.attach(session, "spec.md", b"the spec", "session")
    used = await files.attach(session, "screen.txt")
    gone = await files.turn(session)
    await files.bench.rewinds.rewind(RewindTo(session, "test", 1))
    assert await files.selected(session) == ["spec.md"]
    assert not (await files.attachments.get(used.ref.attachment_id)).selected
    after = await files.turn(session)
    assert names(after) == ["spec.md"]
    # The conversation has it anew, since the turn that had brought it is out.
    assert [event.name for event in await consumed(files, session, after.turn_id)] == ["spec.md"]
    assert (await files.attachments.get(kept.ref.attachment_id)).used_by == after.turn_id
    assert names((await files.bench.turns.get(gone.turn_id)).turn) == ["spec.md", "screen.txt"]


async def test_a_fork_has_references_of_its_own(files: Files) -> None:
    session = await files.bench.open()
    kept = await files.attach(session, "spec.md", b"the spec", "session")
    await files.attach(session, "screen.txt", b"the screen")
    await files.turn(session)
    await files.turn(session)
    await files.attach(session, "next.txt")
    gone = await files.attach(session, "gone.md", b"gone", "session")
    await files.turn(session)
    await files.attach(session, "waits.txt")
    await files.attachments.remove(gone.ref.attachment_id)
    before = await files.attachments.page(session, limit=100)
    fork = (await files.bench.forks.fork(ForkFrom(session, "test"))).session.session_id
    assert await files.attachments.page(session, limit=100) == before
    turns = [view.turn for view in await files.bench.turns.page(fork)][::-1]
    assert [names(turn) for turn in turns] == [
        ["spec.md", "screen.txt"],
        ["spec.md"],
        ["spec.md", "next.txt", "gone.md"],
    ]
    assert await files.selected(fork) == ["spec.md"]
    found = {item.ref.name: item for item in await files.attachments.page(fork, limit=100)}
    assert set(found) == {"spec.md", "screen.txt", "next.txt", "gone.md"}
    assert found["spec.md"].used_by == turns[0].turn_id and found["spec.md"].ref != kept.ref
    assert found["spec.md"].ref.blob == kept.ref.blob
    for turn in turns:
        for ref in turn.request.attachments:
            assert ref == found[ref.name].ref and found[ref.name].session_id == fork
    assert await files.attachments.text(found["screen.txt"].ref.attachment_id) == "the screen"
    told = await consumed(files, fork, turns[0].turn_id)
    assert [event.attachment_id for event in told] == [ref.attachment_id for ref in turns[0].request.attachments]
    # A fork of an early point has what its turns have.
    early = (await files.bench.forks.fork(ForkFrom(session, "test", number=1))).session.session_id
    assert {item.ref.name for item in await files.attachments.page(early, limit=100)} == {"spec.md", "screen.txt"}
    assert await files.selected(early) == ["spec.md"]
    assert await files.bench.verified() == []


async def test_the_same_bytes_are_kept_once(files: Files) -> None:
    one, two = await files.bench.open(), await files.bench.open()
    first = await files.attach(one, "a.txt", b"same" * 1000)
    second = await files.attach(two, "b.txt", b"same" * 1000)
    assert first.ref.blob == second.ref.blob and first.ref.text == second.ref.text
    # The file and its text are the same bytes here.
    assert files.blobs() == 1


async def test_what_cannot_be_attached(files: Files) -> None:
    session = await files.bench.open()
    small = AttachmentLimits(image_bytes=1000, document_bytes=2000)
    attachments = files.attachments
    files.attachments = AttachmentService(
        files.bench.ledger, files.contents, attachments._clock, attachments._ids, files.extractor, small
    )
    with pytest.raises(PayloadTooLarge, match=r"'long\.txt' is too large. Files that are no images may have 2,000"):
        await files.attach(session, "long.txt", b"x" * 2001)
    with pytest.raises(PayloadTooLarge, match=r"'a\.txt' is too large. Images may have 1,000 bytes"):
        await files.attach(session, "a.txt", b"\x89PNG\r\n\x1a\n" + b"x" * 1000)
    await files.attach(session, "fits.txt", b"x" * 2000)
    for name in ("", "  ", "x" * 256):
        with pytest.raises(InvalidInput, match="1 to 255 characters"):
            await files.attach(session, name)
    with pytest.raises(InvalidInput, match=r"'empty\.txt' is empty"):
        await files.attach(session, "empty.txt", b"")
    with pytest.raises(SessionNotFound):
        await files.attach("ses_none", "a.txt")
    for number in range(MAX_SELECTED - 1):
        await files.attach(session, f"{number}.txt")
    with pytest.raises(InvalidInput, match=r"'more\.txt' was not attached: the next turn has 20 attachments already"):
        await files.attach(session, "more.txt")
    await files.bench.sessions.close(session)
    with pytest.raises(SessionClosed):
        await files.attach(session, "a.txt")
    with pytest.raises(AttachmentNotFound):
        await files.attachments.get("att_none")


async def test_any_name_is_only_a_name(files: Files) -> None:
    session = await files.bench.open()
    odd = ["../../etc/passwd", "C:\\x\\y", "a\nb\0c", "\u202etxt.exe", "\U0001f9ed \udcff", "'; DROP TABLE turns;--"]
    for name in odd:
        await files.attach(session, name)
    assert await files.selected(session) == odd
    assert names(await files.turn(session)) == odd
    assert await files.bench.verified() == []


async def test_one_that_no_turn_has_used_is_gone_when_it_is_removed(files: Files) -> None:
    session = await files.bench.open()
    made = await files.attach(session, "a.txt")
    assert (await files.attachments.remove(made.ref.attachment_id)).removed_at is not None
    with pytest.raises(AttachmentNotFound):
        await files.attachments.get(made.ref.attachment_id)
    assert await files.attachments.page(session) == []


async def test_pages(files: Files) -> None:
    session = await files.bench.open()
    made = [(await files.attach(session, f"{number}.txt")).ref.attachment_id for number in range(7)]
    seen: list[str] = []
    before: str | None = None
    while page := await files.attachments.page(session, before=before, limit=3):
        seen += [item.ref.attachment_id for item in page]
        before = seen[-1]
    assert seen == made[::-1]


async def test_a_turn_waits_for_files_that_are_read(files: Files) -> None:
    session = await files.bench.open()
    free = asyncio.Event()
    extract = files.extractor.extract

    async def held(pieces: object, name: str) -> object:
        await free.wait()
        return await extract(pieces, name)  # type: ignore[arg-type]

    files.extractor.extract = held  # type: ignore[method-assign, assignment]
    made = await files.attach(session, "a.txt", b"the text", wait=False)
    assert made.ref.state is AttachmentState.PENDING
    begun = asyncio.create_task(files.begin(session))
    await asyncio.sleep(0.3)
    (found,) = await files.attachments.selected(session)
    assert found.ref.state is AttachmentState.EXTRACTING and not begun.done()
    free.set()
    turn = await begun
    assert [(ref.name, ref.state) for ref in turn.request.attachments] == [("a.txt", AttachmentState.READY)]


async def test_files_that_a_killed_process_was_reading_are_read_by_the_next(files: Files) -> None:
    session = await files.bench.open()
    made = await files.attach(session, "a.txt", b"the text")
    ref = replace(made.ref, state=AttachmentState.PENDING, text=None)
    lost = Attachment(session, made.scope, replace(ref, attachment_id="att_lost"), made.created_at, tried_at=0)
    late = replace(lost, ref=replace(ref, attachment_id="att_late"), tried_at=made.created_at)

    def leave(tx: object) -> None:
        for item in (lost, late):
            tx.attachments.add(item)  # type: ignore[attr-defined]
        assert tx.attachments.take("att_late", made.created_at, 0)  # type: ignore[attr-defined]
        # Somebody has it in hand.
        assert not tx.attachments.take("att_late", made.created_at, 0)  # type: ignore[attr-defined]

    await files.bench.ledger.write(leave)
    states = {item.ref.attachment_id: item.ref.state for item in await files.attachments.selected(session)}
    assert states == {
        made.ref.attachment_id: AttachmentState.READY,
        "att_lost": AttachmentState.READY,
        "att_late": AttachmentState.EXTRACTING,
    }
    # A process that alone may use the ledger knows that the other one is dead.
    await files.bench.ledger.write(lambda tx: tx.attachments.release())
    turn = await files.begin(session)
    assert [ref.state for ref in turn.request.attachments] == [AttachmentState.READY] * 3


async def test_one_that_is_removed_while_it_is_read(files: Files) -> None:
    session = await files.bench.open()
    free = asyncio.Event()
    extract = files.extractor.extract

    async def held(pieces: object, name: str) -> object:
        await free.wait()
        return await extract(pieces, name)  # type: ignore[arg-type]

    files.extractor.extract = held  # type: ignore[method-assign, assignment]
    made = await files.attach(session, "a.txt", wait=False)
    waiting = asyncio.create_task(files.attach(session, "b.txt"))
    await asyncio.sleep(0.2)
    await files.attachments.remove(made.ref.attachment_id)
    (other,) = await files.attachments.page(session)
    await files.attachments.remove(other.ref.attachment_id)
    free.set()
    with pytest.raises(AttachmentNotFound):
        await waiting
    await files.attachments.close()
    assert await files.attachments.page(session) == []


async def test_at_once_and_at_the_limit(files: Files) -> None:
    """Uploads and turns at the same time: no more than the limit, and each file for exactly one turn."""
    session = await files.bench.open()
    done = await asyncio.gather(
        *(files.attach(session, f"{number}.txt", b"%d" % number) for number in range(MAX_SELECTED + 4)),
        return_exceptions=True,
    )
    refused = [item for item in done if isinstance(item, InvalidInput)]
    assert len(refused) == 4 and len(await files.selected(session)) == MAX_SELECTED
    turns = await asyncio.gather(*(files.begin(session) for _ in range(3)), return_exceptions=True)
    (turn,) = [item for item in turns if not isinstance(item, BaseException)]
    assert len(turn.request.attachments) == MAX_SELECTED and await files.selected(session) == []


async def test_a_file_whose_bytes_are_lost(files: Files) -> None:
    session = await files.bench.open()
    made = await files.attach(session, "a.txt", b"the text")
    for path in (files.root / "blobs").glob("??/*"):
        path.unlink()
    assert [finding.problem for finding in await files.bench.verified()] == [
        f"Attachment {made.ref.attachment_id}: The blob {made.ref.blob.digest} (8 bytes) is missing."
    ]
    # The turn goes on without it.
    messages = await files.given(session)
    assert "a.txt" in messages[-1].text.text and "the text" not in messages[-1].text.text


async def test_a_fault_while_a_file_is_read_leaves_it_to_be_read_again(files: Files) -> None:
    session = await files.bench.open()
    extract = files.extractor.extract

    async def fails(pieces: object, name: str) -> object:
        raise StorageUnavailable("The disk is full.")

    files.extractor.extract = fails  # type: ignore[method-assign, assignment]
    made = await files.attach(session, "a.txt", b"the text", wait=False)
    await asyncio.gather(*files.attachments._reading, return_exceptions=True)
    (found,) = await files.attachments.selected(session)
    assert found.ref.state is AttachmentState.EXTRACTING and files.attachments._reading == set()
    files.extractor.extract = extract  # type: ignore[method-assign]
    await files.bench.ledger.write(lambda tx: tx.attachments.release())
    assert [ref.state for ref in (await files.begin(session)).request.attachments] == [AttachmentState.READY]
    assert await files.attachments.text(made.ref.attachment_id) == "the text"
