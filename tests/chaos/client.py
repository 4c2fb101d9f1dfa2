"""A client of the API as people have one: it repeats what got no answer, and follows a Session across every break."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from milepost.bootstrap.data_root import DataRoot

AGAIN_SECONDS = 0.1
ANSWER_SECONDS = 5.0
LOOK_SECONDS = 0.4
ACCEPT_SECONDS = 90.0

Json = dict[str, Any]


@dataclass
class Shown:
    """What a reader of a Session has seen, over all its connections. Anything doubled or missing becomes a fault."""

    cursor: str = "0"
    seqs: list[int] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    connections: int = 0
    _texts: dict[tuple[str, str], str] = field(default_factory=dict)
    _attempts: dict[str, int] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)

    def apply(self, frame: Json) -> None:
        """Take a frame."""
        data = frame["data"]
        match frame["type"]:
            case "event":
                self._event(data)
            case "delta":
                self._delta(data)
            case "attempt.superseded":
                self._drop(data["effect_id"], data["attempt"])
            case _:
                pass
        self.cursor = frame["cursor"]

    def _event(self, data: Json) -> None:
        if data["seq"] != len(self.seqs) + 1:
            self.faults.append(f"a reader saw event {data['seq']} after {self.seqs[-2:]}")
        self.seqs.append(data["seq"])
        payload = data["payload"]
        if data["type"] == "model.called":
            call = payload["effect_id"]
            self._settled.add(call)
            for channel in ("text", "reasoning"):
                parts = [part["text"] for part in payload["message"]["parts"] if part["kind"] == channel]
                shown = self._texts.get((call, channel), "")
                if payload["attempt"] == self._attempts.get(call, 1) and not "".join(parts).startswith(shown):
                    self.faults.append(f"a reader saw the {channel} {shown!r}, and the ledger has {''.join(parts)!r}")
        if data["type"] in ("turn.completed", "turn.failed", "turn.stopped", "turn.interrupted"):
            self.ended.add(data["turn_id"])

    def _delta(self, data: Json) -> None:
        call, channel = data["effect_id"], data["channel"]
        if call in self._settled:
            self.faults.append("a reader got text of a call that had ended")
        if data["attempt"] < self._attempts.get(call, 1):
            self.faults.append("a reader got text of a superseded attempt")
        self._attempts[call] = data["attempt"]
        shown = self._texts.get((call, channel), "")
        if data["offset"] != len(shown):
            self.faults.append(f"a reader got text at {data['offset']}, and had {len(shown)} characters")
        self._texts[call, channel] = shown + data["text"]

    def _drop(self, call: str, attempt: int) -> None:
        if self._attempts.get(call, 1) <= attempt:
            self._attempts[call] = attempt + 1
            for channel in ("text", "reasoning"):
                self._texts.pop((call, channel), None)


@dataclass(frozen=True)
class Sample:
    """What a reader was told of a turn: `sent` is when it began to ask (seconds since the epoch)."""

    sent: float
    status: str
    state: str


class ApiClient:
    """Talks to the API on the socket of a data root, or at an address."""

    def __init__(self, home: Path, url: str | None = None) -> None:
        self._root = DataRoot(home)
        self._url = url
        self._http: httpx.AsyncClient | None = None

    def http(self) -> httpx.AsyncClient:
        """A client of the process that serves now; the token is there once one has served."""
        if self._http is None:
            self._http = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(uds=None if self._url else str(self._root.socket)),
                base_url=self._url or "http://milepost",
                headers={"Authorization": f"Bearer {self._root.token.read_text().strip()}"},
                timeout=ANSWER_SECONDS,
            )
        return self._http

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def post(self, path: str, body: Json) -> Json:
        """Send until there is an answer; what the API refuses for good raises AssertionError."""
        async with asyncio.timeout(ACCEPT_SECONDS):
            while True:
                with contextlib.suppress(httpx.HTTPError, OSError):
                    answer = await self.http().post(path, json=body)
                    if answer.status_code < 500:
                        assert answer.is_success, answer.text
                        return dict(answer.json())
                await asyncio.sleep(AGAIN_SECONDS)

    async def open_session(self, workspace: Path) -> str:
        return str((await self.post("/api/v1/sessions", {"workspace": str(workspace)}))["session_id"])

    async def begin(self, session: str, turn: str, text: str, script: str) -> Json:
        """Begin a turn; repeating the request is harmless, since it names the turn."""
        body = {"text": text, "turn_id": turn, "script": script}
        return await self.post(f"/api/v1/sessions/{session}/turns", body)

    async def sample(self, turn: str) -> Sample | None:
        """What the API says of a turn now; None if it does not answer, or does not know it yet."""
        sent = time.time()
        with contextlib.suppress(httpx.HTTPError, OSError):
            answer = await self.http().get(f"/api/v1/turns/{turn}")
            if answer.status_code == 200:
                return Sample(sent, answer.json()["status"], answer.json()["state"])
        return None

    async def samples(self, turn: str, into: list[Sample]) -> None:
        """Look all the time."""
        while True:
            found = await self.sample(turn)
            if found is not None:
                into.append(found)
            await asyncio.sleep(LOOK_SECONDS)

    async def follow(self, session: str, shown: Shown) -> None:
        """Follow a Session for ever, from where the last connection broke off."""
        path = f"/api/v1/sessions/{session}/events"
        while True:
            with contextlib.suppress(httpx.HTTPError, OSError):
                limits = httpx.Timeout(ANSWER_SECONDS, read=20)
                async with self.http().stream("GET", path, params={"after": shown.cursor}, timeout=limits) as answer:
                    shown.connections += 1
                    async for line in answer.aiter_lines():
                        if line.startswith("data: "):
                            shown.apply(json.loads(line.removeprefix("data: ")))
            await asyncio.sleep(AGAIN_SECONDS)


@asynccontextmanager
async def background(*works: Any) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run coroutines while the block runs; one that fails fails the block."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
