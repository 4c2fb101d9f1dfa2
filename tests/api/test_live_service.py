"""The live reader itself, on both databases: what a resumed reader gets, at every cursor a client can hold."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from api.live import frame_text
from milepost.domain.content import Content
from milepost.services import live as live_module
from milepost.services import live_batches
from milepost.services.catalog import Services
from milepost.services.live import Cursor
from milepost.services.sessions import OpenSession
from milepost.services.turns import BeginTurn
from tests.api.readers import Transcript
from tests.api.stack import AGENT, Work, make_services
from tests.support.databases import OpenLedger


async def _turn(services: Services, opened: OpenLedger, root: Path) -> Work:
    session = await services.sessions.open(OpenSession(str(root)))
    view = await services.turns.begin(BeginTurn(session.session_id, "do it", agent=AGENT))
    work = Work(opened.ledger, session.session_id, view.turn.turn_id)
    await work.start_agent()
    return work


async def _frames(services: Services, session_id: str, after: str, count: int) -> list[dict[str, object]]:
    frames = []
    async with aclosing(services.live.follow(session_id, Cursor.parse(after))) as following:
        async for frame in following:
            frames.append(json.loads(frame_text(frame)))
            if len(frames) == count:
                break
    return frames


async def test_a_reader_resumed_at_any_frame_gets_exactly_the_rest(opened: OpenLedger, tmp_path: Path) -> None:
    services = make_services(opened.ledger, opened.notifier, tmp_path, {})
    work = await _turn(services, opened, tmp_path)
    first, attempt = await work.start_call()
    await work.say(first, attempt, 0, "to be settled")
    await work.finish_call(first, attempt, "to be settled")
    retried, attempt = await work.start_call()
    await work.say(retried, attempt, 0, "to be superseded")
    await work.retry_call(retried, attempt)
    attempt = await work.redispatch(retried)
    await work.say(retried, attempt, 0, "to ")
    await work.say(retried, attempt, 3, "stay\0\ud800")
    lost, attempt = await work.start_call()
    await work.say(lost, attempt, 0, "to be lost")
    attempt = await work.redispatch(lost)
    await work.say(lost, attempt, 0, "found", "reasoning")

    # What began the turn and the first answer; the retry with what it voids; its text; then what a lost worker left.
    types = ["event", "event", "event", "event", "attempt.superseded", "event", "delta", "delta"]
    types += ["attempt.superseded", "delta"]
    whole = await _frames(services, work.session_id, "0", 1 + len(types))
    assert [frame["type"] for frame in whole[1:]] == types
    for n, frame in enumerate(whole[:-1]):
        rest = await _frames(services, work.session_id, str(frame["cursor"]), len(whole) - n)
        expected = whole[n + 1 :]
        if frame["type"] == "attempt.superseded":
            # It does not move the cursor, so it comes again.
            expected = whole[n:]
            rest = await _frames(services, work.session_id, str(frame["cursor"]), len(whole) - n + 1)
        elif rest[1]["type"] == "attempt.superseded" and expected[0]["type"] == "delta":
            # A reader without memory is told what the first text it gets supersedes.
            rest = rest[:1] + await _without_repeated_void(services, work.session_id, str(frame["cursor"]), expected)
        assert rest[1:] == expected, f"resumed after frame {n}: {frame}"


async def _without_repeated_void(
    services: Services, session_id: str, cursor: str, expected: list[dict[str, object]]
) -> list[dict[str, object]]:
    longer = (await _frames(services, session_id, cursor, len(expected) + 2))[1:]
    assert longer[0]["type"] == "attempt.superseded"
    return longer[1:]


async def test_a_failed_attempt_is_not_shown_while_its_retry_waits(opened: OpenLedger, tmp_path: Path) -> None:
    services = make_services(opened.ledger, opened.notifier, tmp_path, {})
    work = await _turn(services, opened, tmp_path)
    spec, attempt = await work.start_call()
    await work.say(spec, attempt, 0, "void")
    await work.retry_call(spec, attempt)
    follow = services.live.follow
    late, resumed = follow(work.session_id, Cursor()), follow(work.session_id, Cursor(4))
    before = [[(await anext(late)).type for _ in range(6)], [(await anext(resumed)).type]]
    assert before == [["snapshot", "event", "event", "event", "attempt.superseded", "event"], ["snapshot"]]
    following = [asyncio.create_task(anext(frames)) for frames in (late, resumed)]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in following)
    await work.say(spec, await work.redispatch(spec), 0, "valid")
    async with asyncio.timeout(20):
        shown = [await task for task in following]
    assert [(frame.type, frame.data["text"]) for frame in shown] == [("delta", "valid")] * 2
    await late.aclose()
    await resumed.aclose()


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_wrong_position_heals_with_the_next_turn(opened: OpenLedger, tmp_path: Path, at_once: bool) -> None:
    services = make_services(opened.ledger, opened.notifier, tmp_path, {})
    work = await _turn(services, opened, tmp_path)
    frames = services.live.follow(work.session_id, Cursor(3, 999_999))
    assert (await anext(frames)).type == "snapshot"
    await work.end()
    view = await services.turns.begin(BeginTurn(work.session_id, "again"))
    after = Work(opened.ledger, work.session_id, view.turn.turn_id)
    spec, attempt = await after.start_call()
    async with asyncio.timeout(20):
        if not at_once:
            # The end, the next turn's beginning, and that it waits.
            assert [(await anext(frames)).type for _ in range(3)] == ["event", "event", "status"]
        await after.say(spec, attempt, 0, "one")
        types = [(await anext(frames)).type for _ in range(4 if at_once else 1)]
        assert types == (["event", "event", "delta", "status"] if at_once else ["delta"])
        await after.say(spec, attempt, 3, "two")
        assert (await anext(frames)).data["text"] == "two"
    await frames.aclose()


async def test_a_long_past_is_read_in_order(
    opened: OpenLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing but what is there may move the reader on.
    monkeypatch.setattr(live_module, "KEEPALIVE_SECONDS", 3600.0)
    services = make_services(opened.ledger, opened.notifier, tmp_path, {})
    work = await _turn(services, opened, tmp_path)
    for n in range(150):
        spec, attempt = await work.start_call()
        await work.finish_call(spec, attempt, f"answer {n}")
    spec, attempt = await work.start_call()
    await work.say(spec, attempt, 0, "now")
    transcript = Transcript()
    async with asyncio.timeout(30):
        frames = await _frames(services, work.session_id, "0", 1 + 3 + 150 + 1)
    for frame in frames:
        transcript.apply(frame)
    assert transcript.seqs == list(range(1, 154))
    assert transcript.texts == {spec.effect_id: "now"}


async def test_large_pieces_are_read_in_batches_of_bounded_bytes(
    opened: OpenLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "KEEPALIVE_SECONDS", 3600.0)
    services = make_services(opened.ledger, opened.notifier, tmp_path, {})
    work = await _turn(services, opened, tmp_path)
    for _ in range(12):
        await work.run_tool(Content("z" * 240_000))
    spec, attempt = await work.start_call()
    piece = "w" * 60_000
    await work.say_pieces(spec, attempt, 0, [piece] * 12)
    batches = []
    read = live_batches.read_batch

    def watched(*args: Any, **kwargs: Any) -> Any:
        batches.append(read(*args, **kwargs))
        return batches[-1]

    monkeypatch.setattr(live_batches, "read_batch", watched)
    async with asyncio.timeout(30):
        frames = await _frames(services, work.session_id, "0", 1 + 3 + 12 + 12)
    assert [frame["type"] for frame in frames] == ["snapshot"] + ["event"] * 15 + ["delta"] * 12
    transcript = Transcript()
    for frame in frames:
        transcript.apply(frame)
    assert transcript.seqs == list(range(1, 16))
    assert transcript.texts == {spec.effect_id: piece * 12}
    held = [sum(len(event.payload) for event in batch.events) for batch in batches]
    held += [sum(4 * len(delta.text) for _, delta in batch.deltas) for batch in batches]
    assert max(held) <= live_batches.BATCH_BYTES
    assert len(batches) >= 5


async def test_a_piece_over_the_bound_is_still_read(
    opened: OpenLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_batches, "BATCH_BYTES", 10)
    monkeypatch.setattr(live_module, "KEEPALIVE_SECONDS", 3600.0)
    services = make_services(opened.ledger, opened.notifier, tmp_path, {})
    work = await _turn(services, opened, tmp_path)
    spec, attempt = await work.start_call()
    await work.say_pieces(spec, attempt, 0, ["a longer piece", "another one"])
    async with asyncio.timeout(30):
        frames = await _frames(services, work.session_id, "0", 1 + 3 + 2)
    assert [frame["type"] for frame in frames] == ["snapshot"] + ["event"] * 3 + ["delta"] * 2


async def test_closing_ends_all_readers_and_later_ones_follow(opened: OpenLedger, tmp_path: Path) -> None:
    services = make_services(opened.ledger, opened.notifier, tmp_path, {})
    work = await _turn(services, opened, tmp_path)
    frames = services.live.follow(work.session_id, Cursor())
    seen = [await anext(frames) for _ in range(4)]
    services.live.close()
    assert [frame async for frame in frames] == []
    assert len(await _frames(services, work.session_id, str(seen[-1].cursor), 1)) == 1


async def test_a_status_is_told_with_the_event_that_changed_it(
    opened: OpenLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "KEEPALIVE_SECONDS", 3600.0)
    services = make_services(opened.ledger, opened.notifier, tmp_path, {})
    work = await _turn(services, opened, tmp_path)
    async with aclosing(services.live.follow(work.session_id, Cursor(3))) as frames, asyncio.timeout(30):
        assert (await anext(frames)).data["active_turn"]["status"] == "waiting"
        await work.claim()
        await services.turns.stop(work.turn_id, actor="test")
        told = [await anext(frames) for _ in range(2)]
    assert [frame.type for frame in told] == ["event", "status"]
    assert told[1].data["active_turn"]["status"] == "stopping"


async def test_readers_at_one_place_share_a_read(
    opened: OpenLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "KEEPALIVE_SECONDS", 3600.0)
    services = make_services(opened.ledger, opened.notifier, tmp_path, {})
    work = await _turn(services, opened, tmp_path)
    spec, attempt = await work.start_call()
    pieces = [f"{n} " for n in range(20)]
    reads = 0
    read = live_batches.read_batch

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(*args, **kwargs)

    async def text(count: int) -> str:
        said = ""
        async with aclosing(services.live.follow(work.session_id, Cursor(3))) as frames:
            async for frame in frames:
                said += frame.data["text"] if frame.type == "delta" else ""
                arrived.release()
                if said.count(" ") == count:
                    return said
        return said

    monkeypatch.setattr(live_batches, "read_batch", counted)
    arrived = asyncio.Semaphore(0)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        following = [group.create_task(text(len(pieces))) for _ in range(30)]
        for _ in following:
            await arrived.acquire()
        offset = 0
        for piece in pieces:
            await work.say(spec, attempt, offset, piece)
            offset += len(piece)
            for _ in following:
                await arrived.acquire()
    assert {task.result() for task in following} == {"".join(pieces)}
    assert reads < 30 * len(pieces) / 3, "one read for each reader and piece would be 600"
