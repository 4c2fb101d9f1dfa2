"""Following a Session over WebSocket and server-sent events."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from milepost.domain.content import Content
from milepost.services import live as live_module
from tests.api.readers import Transcript, socket, sse_events, sse_texts, ws_texts
from tests.api.stack import Stack, Work, running_stack

NASTY = "a\0b \ud800 \u2028 \x85 🚦"


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def _begun(stack: Stack, session: str | None = None) -> tuple[str, Work]:
    session = session or await stack.open_session()
    turn = await stack.begin(session)
    work = stack.work(session, turn["turn_id"])
    await work.start_agent()
    return session, work


async def _next(connection: Any, type_: str | None = None) -> dict[str, Any]:
    """The next frame (of a type)."""
    async with asyncio.timeout(20):
        while True:
            frame: dict[str, Any] = json.loads(await connection.recv())
            if type_ is None or frame["type"] == type_:
                return frame


async def _caught_up(connection: Any, seq: int) -> None:
    """Read up to an event."""
    while (await _next(connection, "event"))["data"]["seq"] < seq:
        pass


async def story(work: Work, pause: Callable[[], Awaitable[None]], calls: int = 3) -> None:
    """Calls with text, failed attempts, lost workers and tools, then the end."""
    for call in range(calls):
        spec, attempt = await work.start_call()
        final = "".join(f"{call}.{n} {NASTY if n == 2 else 'word'} " for n in range(8))
        if call % 3 == 1:
            await work.say(spec, attempt, 0, "a first try that fails")
            await pause()
            await work.retry_call(spec, attempt)
            await pause()
            attempt = await work.redispatch(spec)
        if call % 3 == 2:
            await work.say(spec, attempt, 0, "a worker that dies ")
            await pause()
            attempt = await work.redispatch(spec)
            await pause()
            await work.say(spec, attempt - 1, 19, "and speaks once more")
        offset = 0
        while offset < len(final):
            piece = final[offset : offset + 5]
            await work.say(spec, attempt, offset, piece)
            offset += len(piece)
            await pause()
        await work.finish_call(spec, attempt, final)
        await pause()
        await work.run_tool(Content(f"result {NASTY}"))
        await pause()
    await work.end()


async def _no_pause() -> None:
    return


async def test_both_transports_send_the_same_frames(stack: Stack) -> None:
    session, work = await _begun(stack)
    await story(work, _no_pause)
    after_end = await ws_texts(stack, session, until_turn=work.turn_id)
    assert after_end == await sse_texts(stack, session, after="0", until_turn=work.turn_id)
    frames = [json.loads(text) for text in after_end]
    assert frames[0]["type"] == "snapshot"
    assert frames[0]["data"]["version"] == frames[-1]["data"]["seq"]
    assert frames[-1]["data"]["type"] == "turn.completed"
    assert NASTY in json.dumps(frames, ensure_ascii=False).replace("\\u0000", "\0").replace("\\u0085", "\x85")
    for cursor in (frames[1]["cursor"], frames[len(frames) // 2]["cursor"], frames[-2]["cursor"]):
        resumed = await ws_texts(stack, session, cursor, until_turn=work.turn_id)
        assert resumed == await sse_texts(stack, session, after=cursor, until_turn=work.turn_id)
        assert json.loads(resumed[0])["type"] == "snapshot"


async def test_both_transports_send_the_same_frames_as_they_come(stack: Stack) -> None:
    session, work = await _begun(stack)
    over_ws: list[str] = []
    over_sse: list[str] = []

    async def read_ws() -> None:
        async with socket(stack, session, until_turn=work.turn_id) as connection:
            async for message in connection:
                over_ws.append(str(message))

    async def read_sse() -> None:
        async for _, _, data in sse_events(stack.client, session, after="0", until_turn=work.turn_id):
            over_sse.append(data)

    async def both_have_it() -> None:
        await _until(lambda: len(over_ws) == len(over_sse) > before[0])
        before[0] = len(over_ws)

    async with asyncio.TaskGroup() as group:
        group.create_task(read_ws())
        group.create_task(read_sse())
        await _until(lambda: len(over_ws) == len(over_sse) == 4)
        before = [4]
        spec, attempt = await work.start_call()
        for n in range(5):
            await work.say(spec, attempt, 2 * n, f"{n} ")
            await both_have_it()
        await work.retry_call(spec, attempt)
        await both_have_it()
        await work.finish_call(spec, await work.redispatch(spec), "done")
        await both_have_it()
        await work.end()
    assert over_ws == over_sse
    types = [json.loads(text)["type"] for text in over_ws]
    assert types.count("delta") == 5
    assert types.count("attempt.superseded") == 1


async def test_twenty_lost_connections_change_nothing(stack: Stack) -> None:
    session, work = await _begun(stack)
    randomness = random.Random(7)
    transcript = Transcript()
    connections = 0

    async def pause() -> None:
        await asyncio.sleep(randomness.random() * 0.02)

    async def one_connection(frames: AsyncIterator[str]) -> bool:
        left = randomness.randrange(1, 9)
        async for text in frames:
            frame = json.loads(text)
            transcript.apply(frame)
            left -= frame["type"] not in ("snapshot", "status", "keepalive")
            if transcript.types and transcript.types[-1] == "turn.completed":
                return True
            if left <= 0:
                return False
        return False

    async def over_ws() -> bool:
        async with socket(stack, session, transcript.cursor) as connection:
            return await one_connection(connection)  # type: ignore[arg-type]

    async def over_sse() -> bool:
        # Another `after` in the address, as a browser sends it: the header wins.
        async with aclosing(sse_events(stack.client, session, transcript.cursor, after="0")) as events:
            return await one_connection(data async for _, _, data in events)

    writing = asyncio.create_task(story(work, pause, calls=6))
    async with asyncio.timeout(60):
        while not await (over_ws() if connections % 2 else over_sse()):
            connections += 1
    await writing
    assert connections >= 20
    whole = Transcript()
    for text in await ws_texts(stack, session, until_turn=work.turn_id):
        whole.apply(json.loads(text))
    assert transcript.seqs == whole.seqs
    assert transcript.types == whole.types
    assert transcript.final == whole.final
    assert len(whole.final) == 6
    await _until(lambda: stack.app.state.live_readers.count == 0)


async def test_a_late_reader_gets_the_text_from_its_beginning(stack: Stack) -> None:
    session, work = await _begun(stack)
    first, attempt = await work.start_call()
    await work.say(first, attempt, 0, "old")
    await work.finish_call(first, attempt, "old")
    spec, attempt = await work.start_call()
    pieces = [chr(97 + n % 26) for n in range(1200)]
    await work.say_pieces(spec, attempt, 0, pieces)
    transcript = Transcript()
    async with socket(stack, session) as connection:
        while len(transcript.texts.get(spec.effect_id, "")) < 1200:
            transcript.apply(await _next(connection))
    assert transcript.texts == {spec.effect_id: "".join(pieces)}
    assert transcript.final == {first.effect_id: "old"}


async def test_a_reader_that_resumes_is_not_told_again_what_has_ended(stack: Stack) -> None:
    session, work = await _begun(stack)
    spec, attempt = await work.start_call()
    await work.say(spec, attempt, 0, "one ")
    await work.say(spec, attempt, 4, "two")
    async with socket(stack, session) as connection:
        delta = await _next(connection, "delta")
        await work.finish_call(spec, attempt, "one two")
        called = await _next(connection, "event")
        while called["data"]["type"] != "model.called":
            called = await _next(connection, "event")
    seq = called["data"]["seq"]
    other, attempt = await work.start_call()
    await work.say(other, attempt, 0, "next")
    for cursor in (called["cursor"], str(seq), f"{seq}.{delta['cursor'].split('.')[1]}"):
        async with socket(stack, session, cursor) as connection:
            frames = [await _next(connection) for _ in range(2)]
        assert [frame["type"] for frame in frames] == ["snapshot", "delta"]
        assert frames[1]["data"]["text"] == "next"


async def test_a_superseded_attempt_is_told_once_and_never_shown_again(stack: Stack) -> None:
    session, work = await _begun(stack)
    spec, attempt = await work.start_call()
    await work.say(spec, attempt, 0, "first")
    async with socket(stack, session) as connection:
        transcript = Transcript()
        while not transcript.texts:
            transcript.apply(await _next(connection))
        await work.retry_call(spec, attempt)
        superseded = await _next(connection, "attempt.superseded")
        assert superseded["data"] == {"turn_id": work.turn_id, "effect_id": spec.effect_id, "attempt": 1}
        retried = await _next(connection)
        assert retried["data"]["type"] == "model.retried"
        # A connection that is lost between the two gets both again.
        assert int(superseded["cursor"].split(".")[0]) == retried["data"]["seq"] - 1
        attempt = await work.redispatch(spec)
        await work.say(spec, attempt, 0, "second")
        delta = await _next(connection)
        assert (delta["type"], delta["data"]["attempt"]) == ("delta", 2)
    # Readers that come while the retry has said nothing yet, or resume behind the event, never see the first text.
    for cursor in ("0", retried["cursor"].split(".")[0], retried["cursor"]):
        async with socket(stack, session, cursor) as connection:
            shown = await _next(connection, "delta")
        assert (shown["data"]["attempt"], shown["data"]["text"]) == (2, "second")


async def test_a_dead_worker_s_text_is_superseded_without_an_event(stack: Stack) -> None:
    session, work = await _begun(stack)
    spec, attempt = await work.start_call()
    await work.say(spec, attempt, 0, "lost")
    async with socket(stack, session) as connection:
        lost = await _next(connection, "delta")
        second = await work.redispatch(spec)
        await work.say(spec, second, 0, "found")
        superseded = await _next(connection)
        assert (superseded["type"], superseded["data"]["attempt"]) == ("attempt.superseded", attempt)
        assert superseded["cursor"] == lost["cursor"]
        assert (await _next(connection))["data"]["text"] == "found"
        # What the first worker writes late belongs to nobody.
        await work.say(spec, attempt, 4, " late")
        await work.say(spec, second, 5, "!")
        assert (await _next(connection))["data"]["text"] == "!"
    async with socket(stack, session, lost["cursor"]) as connection:
        resumed = [await _next(connection) for _ in range(4)]
    assert [frame["type"] for frame in resumed] == ["snapshot", "attempt.superseded", "delta", "delta"]


async def test_the_next_turn_begins_its_text_anew(stack: Stack) -> None:
    session, work = await _begun(stack)
    spec, attempt = await work.start_call()
    async with socket(stack, session) as connection:
        transcript = Transcript()
        for n in range(3):
            await work.say(spec, attempt, n, "x")
        while len(transcript.texts.get(spec.effect_id, "")) < 3:
            transcript.apply(await _next(connection))
        await work.finish_call(spec, attempt, "xxx")
        await work.end()
        _, after = await _begun(stack, session)
        spec, attempt = await after.start_call()
        await after.say(spec, attempt, 0, "y")
        while spec.effect_id not in transcript.texts:
            transcript.apply(await _next(connection))
    assert transcript.texts[spec.effect_id] == "y"


async def test_status_and_version_come_from_one_view(stack: Stack) -> None:
    session = await stack.open_session()
    async with socket(stack, session) as connection:
        snapshot = await _next(connection)
        assert snapshot["data"] == {
            "session_id": session,
            "session_status": "active",
            "version": 1,
            "active_turn": None,
        }
    _, work = await _begun(stack, session)
    async with socket(stack, session) as connection:
        snapshot = await _next(connection)
        assert snapshot["data"]["version"] == 3
        active = {"turn_id": work.turn_id, "number": 1, "state": "running", "status": "waiting"}
        assert snapshot["data"]["active_turn"] == active
        await _caught_up(connection, 3)
        now = stack.services.live._clock.now()

        def dispatched(tx: Any) -> None:
            tx.turns.mark_dispatched(work.turn_id, now)
            tx.notify(session)

        await stack.ledger.write(dispatched)
        status = await _next(connection)
        assert (status["type"], status["data"]["active_turn"]["status"]) == ("status", "working")


async def test_a_stream_ends_with_its_turn_also_if_that_is_long_over(stack: Stack) -> None:
    session, work = await _begun(stack)
    await work.end()
    _, other = await _begun(stack, session)
    texts = await ws_texts(stack, session, until_turn=work.turn_id)
    assert json.loads(texts[-1])["data"]["type"] == "turn.completed"
    last = json.loads(texts[-1])["cursor"]
    for after in (last, "6.0"):
        again = [json.loads(text) for text in await ws_texts(stack, session, after, until_turn=work.turn_id)]
        assert again[0]["type"] == "snapshot"
        assert all(frame["data"]["turn_id"] != work.turn_id for frame in again[1:])
    assert other.turn_id != work.turn_id


async def test_idle_readers_are_kept_alive(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "KEEPALIVE_SECONDS", 0.2)
    session = await stack.open_session()

    async def noise() -> None:
        # Wake-ups that bring no frame must not put the keep-alive off.
        while True:
            stack.notifier.publish(frozenset({session}))
            await asyncio.sleep(0.02)

    making = asyncio.create_task(noise())
    try:
        async with socket(stack, session) as connection:
            frames = [await _next(connection) for _ in range(4)]
        assert [frame["type"] for frame in frames] == ["snapshot", "event", "keepalive", "keepalive"]
        assert frames[-1]["cursor"] == "1.0"
        seen: list[str] = []
        async with aclosing(sse_events(stack.client, session, after="1")) as events:
            async for _, name, data in events:
                seen.append(name or data)
                if len(seen) == 3:
                    break
        assert seen == ["snapshot", ": keepalive", ": keepalive"]
    finally:
        making.cancel()


async def test_idle_readers_ask_the_ledger_nothing(stack: Stack) -> None:
    session = await stack.open_session()
    async with AsyncExitStack() as connections:
        for _ in range(20):
            await _caught_up(await connections.enter_async_context(socket(stack, session)), 1)
        await asyncio.sleep(0.1)
        before = stack.ledger.reads
        await asyncio.sleep(1.0)
        assert stack.ledger.reads == before
        assert stack.app.state.live_readers.count == 20
    await _until(lambda: stack.app.state.live_readers.count == 0)
    # Nobody is woken for readers that have left.
    await _until(lambda: not stack.notifier._subscriptions)


async def test_too_many_readers_are_told_so(sqlite_url: str, tmp_path: Path) -> None:
    async with running_stack(sqlite_url, tmp_path, max_live_readers=2) as stack:
        session = await stack.open_session()
        async with socket(stack, session) as first, socket(stack, session) as second:
            await _next(first)
            await _next(second)
            refused = await stack.client.get(f"/api/v1/sessions/{session}/events")
            assert (refused.status_code, refused.json()["code"]) == (503, "too_many_readers")
            assert "retry-after" in refused.headers
            async with socket(stack, session) as third:
                assert (await _next(third))["data"]["code"] == "too_many_readers"
                with pytest.raises(ConnectionClosed) as closed:
                    await third.recv()
                assert closed.value.rcvd is not None
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4503, "too_many_readers")
            assert (await stack.client.get("/api/v1/instance")).status_code == 200
        await _until(lambda: stack.app.state.live_readers.count == 0)
        async with socket(stack, session) as again:
            assert (await _next(again))["type"] == "snapshot"


@pytest.mark.parametrize(
    ("query", "code", "name", "field"),
    [
        ({"session": "ses_none"}, 4404, "session_not_found", None),
        ({"session": ""}, 4422, "invalid_input", "session"),
        ({"session": "{session}", "after": "x"}, 4422, "invalid_input", "after"),
        ({"session": "{session}", "after": "9"}, 4422, "invalid_input", "after"),
        ({"session": "{session}", "until_turn": "trn_none"}, 4404, "turn_not_found", None),
        ({"session": "{session}", "sesion": "x"}, 4422, "invalid_input", "sesion"),
    ],
)
async def test_what_a_socket_cannot_follow(
    stack: Stack, query: dict[str, str], code: int, name: str, field: str | None
) -> None:
    session = await stack.open_session()
    query = {key: value.format(session=session) for key, value in query.items()}
    async with socket(stack, **query) as connection:
        problem = await _next(connection, "problem")
        assert problem["data"]["code"] == name
        assert problem["data"].get("field") == field
        with pytest.raises(ConnectionClosed) as closed:
            await connection.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (code, name)
    assert stack.app.state.live_readers.count == 0


async def test_a_ledger_that_goes_away_is_told_in_the_stream(stack: Stack) -> None:
    session, work = await _begun(stack)
    seen: list[tuple[str, str, str]] = []

    async def read_sse() -> None:
        async for event in sse_events(stack.client, session):
            seen.append(event)

    async with socket(stack, session) as connection:
        reading = asyncio.create_task(read_sse())
        await _caught_up(connection, 3)
        await _until(lambda: len(seen) == 4)
        stack.ledger.gone = True
        stack.notifier.publish(frozenset({session}))
        problem = await _next(connection)
        assert (problem["type"], problem["cursor"]) == ("problem", "3.0")
        assert problem["data"]["code"] == "storage_unavailable"
        with pytest.raises(ConnectionClosed) as closed:
            await connection.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4503
        await asyncio.wait_for(reading, 20)
        assert (seen[-1][0], seen[-1][1]) == ("3.0", "problem")
    refused = await stack.client.get(f"/api/v1/sessions/{session}/events")
    assert refused.status_code == 503
    stack.ledger.gone = False
    await work.end()
    rest = [
        json.loads(text)["data"].get("type") for text in await ws_texts(stack, session, "3.0", until_turn=work.turn_id)
    ]
    assert rest[-1] == "turn.completed"


async def test_what_a_client_says_is_ignored(stack: Stack) -> None:
    session, work = await _begun(stack)
    async with socket(stack, session) as connection:
        await _next(connection)
        for message in ("hello", b"\x00\xff", "{}", "x" * 60_000):
            await connection.send(message)
        spec, attempt = await work.start_call()
        await work.say(spec, attempt, 0, "still here")
        assert (await _next(connection, "delta"))["data"]["text"] == "still here"
        await connection.send("x" * 70_000)
        with pytest.raises(ConnectionClosed) as closed:
            await _next(connection, "none")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
