"""Clients of the live streams, and what a client makes of the frames."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from tests.api.stack import TOKEN, Stack

Frame = dict[str, Any]
TERMINAL = ("turn.completed", "turn.failed", "turn.stopped", "turn.interrupted")
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@asynccontextmanager
async def socket(stack: Stack, session: str, after: str = "0", **query: str) -> AsyncIterator[ClientConnection]:
    """An open WebSocket."""
    params = httpx.QueryParams({"session": session, "after": after} | query)
    async with connect(f"{stack.ws_url}?{params}", additional_headers=BEARER, max_size=None) as connection:
        yield connection


async def ws_texts(stack: Stack, session: str, after: str = "0", **query: str) -> list[str]:
    """All messages until the server closes."""
    async with socket(stack, session, after, **query) as connection:
        return [str(message) async for message in connection]


async def sse_events(
    client: httpx.AsyncClient, session: str, last_event_id: str | None = None, **query: str
) -> AsyncGenerator[tuple[str, str, str], None]:
    """(id, event, data) of every event with data; comments as ("", "", comment)."""
    path = f"/api/v1/sessions/{session}/events"
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    async with client.stream("GET", path, params=query, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        event: dict[str, str] = {}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if line.startswith(":"):
                yield "", "", line
            elif line:
                event[name] = value
            else:
                if "data" in event:
                    yield event["id"], event["event"], event["data"]
                event = {}


async def sse_texts(stack: Stack, session: str, **query: str) -> list[str]:
    """The data of all events until the server ends the stream; ids and names must agree with it."""
    texts = []
    async for id_, name, data in sse_events(stack.client, session, None, **query):
        frame = json.loads(data)
        assert (id_, name) == (frame["cursor"], frame["type"])
        texts.append(data)
    return texts


@dataclass
class Transcript:
    """What a client shows. Every frame is checked: no event twice or missing, no text twice or missing.

    Text that a gap told of is a row of NUL until it is filled in; `gaps` are the ranges that are not.
    """

    cursor: str = "0"
    seqs: list[int] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    thoughts: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    final: dict[str, str] = field(default_factory=dict)
    final_thoughts: dict[str, str] = field(default_factory=dict)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    superseded: int = 0
    ended: set[str] = field(default_factory=set)

    def fill(self, gap: dict[str, Any], text: str) -> None:
        """Put in what was fetched for a gap."""
        self.gaps.remove(gap)
        assert len(text) == gap["end"] - gap["start"]
        shown = self.texts if gap["channel"] == "text" else self.thoughts
        call, start, end = gap["effect_id"], gap["start"], gap["end"]
        shown[call] = shown[call][:start] + text + shown[call][end:]

    def apply(self, frame: Frame) -> None:
        data = frame["data"]
        match frame["type"]:
            case "event":
                assert data["seq"] == len(self.seqs) + 1, f"event {data['seq']} after {self.seqs[-3:]}"
                self.seqs.append(data["seq"])
                self.types.append(data["type"])
                if data["type"] in TERMINAL:
                    self.ended.add(data["turn_id"])
                if data["type"] == "model.called":
                    call = data["payload"]["effect_id"]
                    parts = data["payload"]["message"]["parts"]
                    for kind, shown, final in (
                        ("text", self.texts, self.final),
                        ("reasoning", self.thoughts, self.final_thoughts),
                    ):
                        final[call] = "".join(part["text"] for part in parts if part["kind"] == kind)
                        if all(gap["effect_id"] != call for gap in self.gaps):
                            assert final[call].startswith(shown.get(call, ""))
                    self.gaps = [gap for gap in self.gaps if gap["effect_id"] != call]
            case "delta":
                call = data["effect_id"]
                assert call not in self.final, "text of a call that has ended"
                assert data["attempt"] >= self.attempts.get(call, 1), "text of a superseded attempt"
                self.attempts[call] = data["attempt"]
                shown = self.texts if data["channel"] == "text" else self.thoughts
                assert data["offset"] == len(shown.get(call, "")), "text lost or doubled"
                shown[call] = shown.get(call, "") + data["text"]
            case "gap":
                for gap in data["ranges"]:
                    call = gap["effect_id"]
                    assert gap["attempt"] >= self.attempts.get(call, 1), "a gap in a superseded attempt"
                    self.attempts[call] = gap["attempt"]
                    self.gaps.append(gap)
                    shown = self.texts if gap["channel"] == "text" else self.thoughts
                    assert gap["start"] == len(shown.get(call, "")), "text lost or doubled"
                    shown[call] = shown.get(call, "") + "\0" * (gap["end"] - gap["start"])
            case "attempt.superseded":
                self.superseded += 1
                call = data["effect_id"]
                if self.attempts.get(call, 1) <= data["attempt"]:
                    self.texts[call] = self.thoughts[call] = ""
                    self.attempts[call] = data["attempt"] + 1
            case "problem":
                raise AssertionError(data)
            case _:
                pass
        self.cursor = frame["cursor"]
