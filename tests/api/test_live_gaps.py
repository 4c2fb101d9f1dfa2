"""Readers that are too slow: what they are not sent, how they are told, and where they get it."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from api.live import frame_text
from milepost.services import live as live_module
from milepost.services import live_batches
from milepost.services.catalog import Services
from milepost.services.live import Cursor
from milepost.services.sessions import OpenSession
from milepost.services.turns import BeginTurn
from tests.api.readers import Transcript, socket, sse_events
from tests.api.stack import AGENT, Stack, Work, make_services
from tests.support.databases import OpenLedger

PIECES = [f"{n:05}\0\ud800🚦" for n in range(60)]
WHOLE = "".join(PIECES)


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones; and nothing but what is there may move a reader on."""
    monkeypatch.setattr(live_module, "KEEPALIVE_SECONDS", 3600.0)
    monkeypatch.setattr(live_batches, "DELTA_BATCH", 20)
    monkeypatch.setattr(live_batches, "BEHIND_PIECES", 40)


async def _work(services: Services, root: Path) -> Work:
    session = await services.sessions.open(OpenSession(str(root)))
    view = await services.turns.begin(BeginTurn(session.session_id, "do it", agent=AGENT))
    work = Work(services.live._ledger, session.session_id, view.turn.turn_id)
    await work.start_agent()
    return work


@pytest.fixture
async def services(opened: OpenLedger, tmp_path: Path) -> Services:
    return make_services(opened.ledger, opened.notifier, tmp_path, {})


@pytest.fixture
async def work(services: Services, tmp_path: Path) -> Work:
    return await _work(services, tmp_path)


async def _take(frames: Any, transcript: Transcript, count: int) -> list[dict[str, Any]]:
    taken = []
    async with asyncio.timeout(30):
        for _ in range(count):
            taken.append(json.loads(frame_text(await anext(frames))))
            transcript.apply(taken[-1])
    return taken


async def test_a_reader_that_falls_behind_is_told_what_it_was_not_sent(services: Services, work: Work) -> None:
    spec, attempt = await work.start_call()
    transcript = Transcript()
    async with aclosing(services.live.follow(work.session_id, Cursor())) as frames:
        await _take(frames, transcript, 1 + 3)
        await work.say_pieces(spec, attempt, 0, PIECES[:5])
        await _take(frames, transcript, 5)
        await work.say_pieces(spec, attempt, len("".join(PIECES[:5])), PIECES[5:55])
        await work.say(spec, attempt, 0, "why", "reasoning")
        (gap,) = await _take(frames, transcript, 1)
        await work.say_pieces(spec, attempt, len("".join(PIECES[:55])), PIECES[55:])
        await _take(frames, transcript, 5)
    expected = [
        {"channel": "text", "start": len("".join(PIECES[:5])), "end": len("".join(PIECES[:55]))},
        {"channel": "reasoning", "start": 0, "end": 3},
    ]
    known = {"agent": AGENT, "effect_id": spec.effect_id, "attempt": attempt}
    assert gap["data"] == {"turn_id": work.turn_id, "ranges": [known | item for item in expected]}
    for item in gap["data"]["ranges"]:
        place = item["attempt"], item["channel"], item["start"], item["end"]
        transcript.fill(item, await services.live.text(item["effect_id"], *place))
    assert transcript.texts == {spec.effect_id: WHOLE}
    # Whoever was cut off after the gap is not told of it again, and misses nothing that came later.
    resumed = services.live.follow(work.session_id, Cursor.parse(gap["cursor"]))
    async with aclosing(resumed) as frames:
        rest = await _take(frames, Transcript(), 1)
        rest += [json.loads(frame_text(await anext(frames))) for _ in range(5)]
    assert [frame["data"].get("text") for frame in rest] == [None, *PIECES[55:]]


async def test_a_late_reader_is_not_a_slow_one(services: Services, work: Work) -> None:
    spec, attempt = await work.start_call()
    await work.say_pieces(spec, attempt, 0, PIECES)
    transcript = Transcript()
    async with aclosing(services.live.follow(work.session_id, Cursor())) as frames:
        taken = await _take(frames, transcript, 1 + 3 + len(PIECES))
    assert transcript.texts == {spec.effect_id: WHOLE}
    assert "gap" not in [frame["type"] for frame in taken]


async def test_text_that_no_longer_counts_is_no_gap(services: Services, work: Work) -> None:
    spec, first = await work.start_call()
    transcript = Transcript()
    async with aclosing(services.live.follow(work.session_id, Cursor())) as frames:
        await _take(frames, transcript, 1 + 3)
        await work.say_pieces(spec, first, 0, PIECES[:50])
        second = await work.redispatch(spec)
        await work.say_pieces(spec, second, 0, PIECES[:3])
        void, gap = await _take(frames, transcript, 2)
        assert (void["type"], void["data"]["attempt"]) == ("attempt.superseded", first)
        assert [(item["attempt"], item["start"]) for item in gap["data"]["ranges"]] == [(second, 0)]
        # Behind again, but the call has ended meanwhile: its event has everything.
        await work.say_pieces(spec, second, len("".join(PIECES[:3])), PIECES[3:])
        await work.finish_call(spec, second, WHOLE)
        (called,) = await _take(frames, transcript, 1)
        assert called["data"]["type"] == "model.called"
        await work.end()
        (output, ended) = await _take(frames, transcript, 2)
        assert (output["data"]["type"], ended["data"]["type"]) == ("agent.output", "turn.completed")
    assert transcript.final == {spec.effect_id: WHOLE}


async def test_what_was_streamed_can_be_had_in_parts(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    work = await _work(stack.services, stack.root)
    spec, first = await work.start_call()
    await work.say(spec, first, 0, "void")
    attempt = await work.redispatch(spec)
    await work.say_pieces(spec, attempt, 0, PIECES)
    await work.say(spec, attempt, 0, "why", "reasoning")

    async def part(start: int, end: int, **query: Any) -> Any:
        path = f"/api/v1/effects/{query.pop('effect', spec.effect_id)}/text"
        params = {"attempt": attempt, "start": start, "end": end} | query
        response = await stack.client.get(path, params=params)
        if response.status_code != 200:
            return response.status_code, response.json()["code"], response.json().get("field")
        return response.content.decode("utf-8", "surrogatepass")

    async def same_parts() -> None:
        for start, end in [(0, 3), (3, 40), (8, 16), (len(WHOLE) - 5, len(WHOLE) + 100), (0, len(WHOLE)), (7, 7)]:
            assert await part(start, end) == WHOLE[start:end]
        assert await part(1, 3, channel="reasoning") == "hy"
        assert (await part(0, 4, attempt=attempt + 1))[:2] == (404, "text_not_found")
        assert await part(5, 3) == (422, "invalid_input", "end")
        assert await part(0, 2**40) == (422, "invalid_input", "end")
        assert (await part(0, 1, channel="smell"))[:2] == (422, "invalid_input")
        assert (await part(0, 1, effect="0" * 64))[:2] == (404, "effect_not_found")

    await same_parts()
    assert await part(0, 4, attempt=first) == "void"
    await work.finish_call(spec, attempt, WHOLE, "why")
    await same_parts()
    assert await part(0, 4, attempt=first) == "void"
    await work.end()
    await same_parts()
    assert (await part(0, 4, attempt=first))[:2] == (404, "text_not_found")


@pytest.mark.parametrize("transport", ["websocket", "events"])
async def test_a_client_that_does_not_read_gets_a_gap_over_both_transports(stack: Stack, transport: str) -> None:
    work = await _work(stack.services, stack.root)
    spec, attempt = await work.start_call()
    piece = "x" * 200_000
    transcript, begun, reading = Transcript(), asyncio.Event(), asyncio.Event()

    async def read() -> None:
        if transport == "websocket":
            async with socket(stack, work.session_id) as connection:
                async for message in connection:
                    if await note(json.loads(message)):
                        return
        else:
            async with aclosing(sse_events(stack.client, work.session_id)) as events:
                async for _, _, data in events:
                    if await note(json.loads(data)):
                        return

    async def note(frame: dict[str, Any]) -> bool:
        transcript.apply(frame)
        if frame["type"] == "delta" and not begun.is_set():
            begun.set()
            await reading.wait()
        return bool(transcript.types and transcript.types[-1] == "turn.completed")

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(read())
        await asyncio.sleep(0.1)
        await work.say(spec, attempt, 0, piece)
        await begun.wait()
        for n in range(1, 120):
            await work.say(spec, attempt, n * len(piece), piece)
        reading.set()
        while not transcript.gaps:
            await asyncio.sleep(0.01)
        await work.finish_call(spec, attempt, piece * 120)
        await work.end()
    assert all(gap["end"] > gap["start"] for gap in transcript.gaps)
    assert transcript.final == {spec.effect_id: piece * 120}
