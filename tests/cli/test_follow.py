"""Following a turn through lost connections: resumed at the cursor, bounded, complete."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cli import follow as following
from cli.client import ApiClient
from cli.failures import ConnectionLost, RemoteFailure
from cli.follow import MAX_ATTEMPTS, Position, follow


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "BACKOFF_FIRST_SECONDS", 0.0)


def frame(seq: int, type_: str = "event", *, turn: str = "t", kind: str = "agent.output") -> dict[str, Any]:
    data: dict[str, Any] = {"turn_id": turn, "type": kind} if type_ == "event" else {"turn_id": turn, "text": "x"}
    return {"type": type_, "cursor": f"{seq}.0", "data": data}


def sse(frames: list[dict[str, Any]]) -> bytes:
    lines = [": keepalive\n\n"]
    lines += [f"id: {item['cursor']}\nevent: {item['type']}\ndata: {json.dumps(item)}\n\n" for item in frames]
    return "".join(lines).encode()


class Broken(httpx.AsyncByteStream):
    """A body that breaks off after what it has."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), 7):
            yield self._body[start : start + 7]
        raise httpx.ReadError("gone")


class Server:
    """Serves a fixed log of frames, `piece` of them per connection."""

    def __init__(self, log: list[dict[str, Any]], piece: int) -> None:
        self.log = log
        self.piece = piece
        self.cursors: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/v1/turns/t":
            return httpx.Response(200, json={"state": "running"})
        after = request.url.params["after"]
        self.cursors.append(after)
        assert request.headers["authorization"] == "Bearer token"
        rest = [item for item in self.log if int(item["cursor"].split(".")[0]) > int(after.split(".")[0])]
        return httpx.Response(200, stream=Broken(sse(rest[: self.piece])))


async def collect(handler: Any, position: Position | None = None) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    client = ApiClient(httpx.MockTransport(handler), "token")
    try:
        await follow(client, "s", "t", seen.append, position or Position())
    finally:
        await client.close()
    return seen


async def test_twenty_lost_connections_change_nothing() -> None:
    log = [frame(seq) for seq in range(1, 21)] + [frame(21, kind="turn.completed")]
    server = Server(log, piece=1)
    assert await collect(server) == log
    assert server.cursors == ["0", *[f"{seq}.0" for seq in range(1, 21)]]


async def test_only_the_turns_own_frames_are_handed_on() -> None:
    log = [frame(1, turn="other"), frame(2, "delta", turn="other"), frame(3), frame(4, kind="turn.stopped")]
    assert await collect(Server(log, piece=10)) == log[2:]


async def test_another_turns_end_is_not_the_end() -> None:
    log = [frame(1, turn="other", kind="turn.completed"), frame(2, kind="turn.failed")]
    assert await collect(Server(log, piece=1)) == log[1:]


async def test_a_dead_instance_ends_the_tries() -> None:
    tries = 0

    def dead(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        raise httpx.ConnectError("refused")

    with pytest.raises(ConnectionLost):
        await collect(dead)
    assert tries == MAX_ATTEMPTS


async def test_a_stream_that_always_ends_early_ends_the_tries() -> None:
    server = Server([], piece=1)
    with pytest.raises(ConnectionLost):
        await collect(server)
    assert len(server.cursors) == MAX_ATTEMPTS


async def test_a_turn_that_ended_while_nobody_listened_is_the_end() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/v1/turns/t":
            return httpx.Response(200, json={"state": "completed"})
        return httpx.Response(200, content=sse([]))

    assert await collect(handler) == []


async def test_a_refusal_is_not_tried_again() -> None:
    tries = 0

    def refuse(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        return httpx.Response(404, json={"code": "turn_not_found", "detail": "There is no turn t.", "fix": "Look."})

    with pytest.raises(RemoteFailure) as caught:
        await collect(refuse)
    assert (tries, caught.value.remote_code, caught.value.fix) == (1, "turn_not_found", "Look.")


@pytest.mark.parametrize("lost", [False, True], ids=["at once", "after a lost connection"])
async def test_what_a_gap_left_out_is_fetched(monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    monkeypatch.setattr(following, "PART", 4)
    call = {"agent": "a", "effect_id": "e", "attempt": 2, "channel": "text"}
    gone = call | {"effect_id": "gone", "attempt": 1}
    ranges = [call | {"start": 3, "end": 10}, gone | {"start": 0, "end": 5}]
    gap = {"type": "gap", "cursor": "2.0", "data": {"turn_id": "t", "ranges": ranges}}
    server = Server([frame(1), gap, frame(3, kind="turn.completed")], piece=10)
    breaks = {"7"} if lost else set()

    def handler(request: httpx.Request) -> httpx.Response:
        if not request.url.path.startswith("/api/v1/effects/"):
            return server(request)
        if request.url.path != "/api/v1/effects/e/text":
            return httpx.Response(404, json={"code": "text_not_found", "detail": "Gone."})
        if request.url.params["start"] in breaks:
            breaks.clear()
            raise httpx.ReadError("gone")
        asked = request.url.params
        assert (asked["attempt"], asked["channel"]) == ("2", "text")
        return httpx.Response(200, content="0123456789ab"[int(asked["start"]) : int(asked["end"])].encode())

    seen = await collect(handler)
    assert [item["type"] for item in seen] == ["event", "gap", "delta", "delta", "event"]
    assert [(item["data"]["offset"], item["data"]["text"]) for item in seen[2:4]] == [(3, "3456"), (7, "789")]
    assert server.cursors == (["0", "1.0"] if lost else ["0"])
