"""The base of fake model servers: HTTP, plans, logs, misbehavior and bills, without any wire format.

What a server answers is planned: `plan(Reply(...), ...)` in this process, or `POST /control/plan` with a JSON list from
another. Without a plan it repeats the last user message. What it got is recorded: `requests`, or `GET /control/log`.
A request that breaks a rule of the format is answered with 400 and the rule.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any, Self

from tests.support.validators import validate

MODELS = ("fake-small", "fake-large")
MAX_BODY = 64 * 1024 * 1024
STALL_SECONDS = 60.0


@dataclass(frozen=True)
class Tokens:
    """What an answer costs, in classes that do not overlap; `cache_write` is for services that charge for it."""

    input: int = 11
    cached: int = 0
    output: int = 7
    reasoning: int = 0
    cache_write: int = 0


@dataclass(frozen=True)
class Billed:
    """One line of the server's bill."""

    model: str
    tokens: Tokens


@dataclass
class Reply:
    """One answer and how it misbehaves.

    index: normal | none | zero, ids: normal | none | same | every_chunk | churn say how tool calls are numbered;
    interleaved calls come in turns. usage_at: end | finish | each | twice | late | none.
    fault: eof (clean end) | fin (end without the last chunk) | rst | error_event | stall, after `fault_after` events.
    `events` replaces everything else by the given payloads. A `status` other than 200 answers `body`.
    `tokens` is what the answer costs; `usage` replaces the report of it. `extra` is for single formats.
    """

    text: str = ""
    reasoning: str = ""
    reasoning_field: str = "reasoning_content"
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    tokens: Tokens | None = None
    usage: dict[str, Any] | None = None
    usage_at: str = "end"
    piece: int = 8
    index: str = "normal"
    ids: str = "normal"
    name_in_each: bool = False
    interleaved: bool = False
    null_first: bool = True
    done: bool = True
    delay: float = 0.0
    fault: str | None = None
    fault_after: int = 3
    events: list[Any] | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    refusal: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Received:
    """One request; `raw` is its body as it came.

    `closed_at` is when the client closed the connection before the answer's end (monotonic clock).
    """

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int
    raw: str = ""
    events_sent: int = 0
    finished: bool = False
    closed_at: float | None = None


class WireServer:
    """Runs on 127.0.0.1 in a thread of its own. A subclass adds a wire format.

    `format` names its validator, `call_path` is the end of the path of a model call, `models_path` that of the list.
    """

    format = ""
    call_path = ""
    models_path = "/models"
    prefix = "/v1"
    content_type = "text/event-stream"

    def __init__(self, key: str | None = None) -> None:
        self.key = key
        self.requests: list[Received] = []
        self.billed: list[Billed] = []
        self.models: tuple[str, ...] = MODELS
        self.longest: int | None = None
        """Bytes of a model call's body; a longer one is refused with `too_long`."""
        self._plan: deque[Reply] = deque()
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    @property
    def chats(self) -> list[Received]:
        """The model calls among the requests."""
        return [request for request in self.requests if self.is_call(request.path)]

    # --- what a wire format says ---

    def is_call(self, path: str) -> bool:
        return path.partition("?")[0].endswith(self.call_path)

    def listed(self) -> Any:
        """The answer to a request for the models."""
        raise NotImplementedError

    def other(self, request: Received) -> Any:
        """The answer to a request that is neither a call nor for the models; None is 404."""
        return None

    def error(self, message: str, code: Any = None) -> Any:
        """The body of a refusal."""
        return {"error": {"message": message, "type": "error", "code": code}}

    def error_event(self) -> Any:
        """What an error in mid-stream looks like."""
        return self.error("the slot failed", 500)

    def too_long(self) -> Reply:
        """The refusal of a conversation that is longer than the model takes, as the service documents it."""
        message = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9317 tokens."
        error = {"message": message, "type": "invalid_request_error", "param": "messages"}
        return Reply(status=400, body=json.dumps({"error": {**error, "code": "context_length_exceeded"}}))

    def said(self, body: Any) -> str:
        """The last text of the user."""
        raise NotImplementedError

    def model_of(self, request: Received) -> str:
        return str(request.body.get("model"))

    def presented_key(self, headers: Mapping[str, str]) -> str:
        """The key of a request; empty for none."""
        return headers.get("authorization", "").removeprefix("Bearer ")

    def payloads(self, body: Any, reply: Reply) -> Iterator[Any]:
        """The events of a whole answer."""
        raise NotImplementedError

    def frame(self, payload: Any) -> str:
        return f"data: {json.dumps(payload)}\n\n"

    def last_frame(self, reply: Reply) -> str:
        """What follows the last event."""
        return ""

    # --- bills ---

    def invoice(self, prices: Mapping[str, Mapping[str, Decimal]]) -> Decimal:
        """What all answers cost, also those that were cut; prices by model and class for a million tokens."""
        million = Decimal(1_000_000)
        return sum(
            (
                prices[line.model][name] * count / million
                for line in self.billed
                for name, count in vars(line.tokens).items()
            ),
            Decimal(0),
        )

    # --- plans ---

    def plan(self, *replies: Reply) -> None:
        """Answer the next calls like this, in order."""
        self._plan.extend(replies)

    def wait(self, condition: Callable[[], object], seconds: float = 10.0) -> None:
        """Wait for something this server is to see."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the server did not see it"
            time.sleep(0.01)

    def start(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        try:
            while (request := await _read_request(reader, number)) is not None:
                if not await self._answer(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if request.path.startswith("/control/"):
            return await self._control(request, writer)
        self.requests.append(request)
        if self.key is not None and (sent := self.presented_key(request.headers)) != self.key:
            return await _plain(writer, 401, self.error(f"Incorrect API key provided: {sent}"))
        if not self._plan and not self.is_call(request.path):
            if request.path.partition("?")[0].endswith(self.models_path):
                return await _plain(writer, 200, self.listed())
            found = self.other(request)
            return await _plain(writer, 200 if found is not None else 404, found or self.error("no such route"))
        if self.longest is not None and self.is_call(request.path) and len(request.raw.encode()) > self.longest:
            reply = self.too_long()
        else:
            reply = self._plan.popleft() if self._plan else Reply(text=f"You said: {self.said(request.body)}")
        if reply.status != 200:
            return await _plain(writer, reply.status, reply.body, reply.headers)
        broken = validate(self.format, request.body)
        if broken:
            return await _plain(writer, 400, self.error("; ".join(broken)))
        watch = asyncio.ensure_future(reader.read(1))
        watch.add_done_callback(lambda ended: _note_close(request, ended))
        try:
            return await self._stream(request, reply, writer, watch)
        except ConnectionError:
            request.closed_at = request.closed_at or time.monotonic()
            raise
        finally:
            # The next request is read once nobody else reads.
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _control(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        if request.path == "/control/plan":
            self.plan(*map(_planned, request.body))
            return await _plain(writer, 200, {"planned": len(self._plan)})
        return await _plain(writer, 200, {"requests": [asdict(seen) for seen in self.requests]})

    async def _stream(
        self, request: Received, reply: Reply, writer: asyncio.StreamWriter, watch: asyncio.Future[bytes]
    ) -> bool:
        writer.write(_head(200, {"Content-Type": self.content_type, "Transfer-Encoding": "chunked", **reply.headers}))
        self.billed.append(Billed(self.model_of(request), reply.tokens or Tokens()))
        for payload in self.payloads(request.body, reply) if reply.events is None else reply.events:
            if reply.fault is not None and request.events_sent >= reply.fault_after:
                break
            data = payload if isinstance(payload, str) else self.frame(payload)
            _write_chunk(writer, data.encode("utf-8", "surrogatepass"))
            await writer.drain()
            request.events_sent += 1
            if reply.delay:
                await asyncio.wait({watch}, timeout=reply.delay)
            if watch.done():
                return False
        return await self._end(request, reply, writer, watch)

    async def _end(
        self, request: Received, reply: Reply, writer: asyncio.StreamWriter, watch: asyncio.Future[bytes]
    ) -> bool:
        if reply.fault == "stall":
            await asyncio.wait({watch}, timeout=STALL_SECONDS)
            return False
        request.finished = True
        if reply.fault == "rst":
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        if reply.fault == "fin":
            return False
        if reply.fault == "error_event":
            _write_chunk(writer, self.frame(self.error_event()).encode())
        elif reply.fault is None and reply.done and (last := self.last_frame(reply)):
            _write_chunk(writer, last.encode())
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _planned(entry: dict[str, Any]) -> Reply:
    tokens = entry.pop("tokens", None)
    return Reply(**entry, tokens=None if tokens is None else Tokens(**tokens))


def _note_close(request: Received, ended: asyncio.Future[bytes]) -> None:
    if not ended.cancelled() and not request.finished:
        # A reset is an exception, an orderly close an empty read; both are looked at here.
        ended.exception()
        request.closed_at = request.closed_at or time.monotonic()


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ", 2)
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields if name}
    length = int(headers.get("content-length", "0"))
    assert length <= MAX_BODY
    raw = await reader.readexactly(length)
    return Received(method, path, headers, json.loads(raw) if raw else None, connection, raw.decode())


async def _plain(
    writer: asyncio.StreamWriter, status: int, body: dict[str, Any] | str, headers: dict[str, str] | None = None
) -> bool:
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else json.dumps(body).encode()
    kind = "text/html" if isinstance(body, str) and body.startswith("<") else "application/json"
    fields = {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}
    writer.write(_head(status, fields) + data)
    await writer.drain()
    return True


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Answer", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def pieces(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]
