"""A fake OpenAI-compatible server with its own wire code: faithful by default, misbehaving on request.

What it answers is planned: `plan(Reply(...), ...)` in this process, or `POST /control/plan` with a JSON list from
another. Without a plan it repeats the last user message. What it got is recorded: `requests`, or `GET /control/log`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.support.validators.openai_chat import violations

MODELS = ("fake-small", "fake-large")
MAX_BODY = 64 * 1024 * 1024
STALL_SECONDS = 60.0


@dataclass
class Reply:
    """One answer and how it misbehaves.

    index: normal | none | zero, ids: normal | none | same | every_chunk | churn say how tool calls are numbered;
    interleaved calls come in turns. usage_at: end (a chunk without choices) | finish | each | twice | none.
    fault: eof (clean end) | fin (end without the last chunk) | rst | error_event | stall, after `fault_after` events.
    `events` replaces everything else by the given payloads. A `status` other than 200 answers `body`.
    """

    text: str = ""
    reasoning: str = ""
    reasoning_field: str = "reasoning_content"
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
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


@dataclass
class Received:
    """One request. `closed_at` is when the client closed the connection before the answer's end (monotonic clock)."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int
    events_sent: int = 0
    finished: bool = False
    closed_at: float | None = None


class OpenAIServer:
    """Runs on 127.0.0.1 in a thread of its own."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key
        self.requests: list[Received] = []
        self.models: tuple[str, ...] = MODELS
        self._plan: deque[Reply] = deque()
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def chats(self) -> list[Received]:
        return [request for request in self.requests if request.path.endswith("/chat/completions")]

    def plan(self, *replies: Reply) -> None:
        """Answer the next calls like this, in order."""
        self._plan.extend(replies)

    def wait(self, condition: Callable[[], object], seconds: float = 10.0) -> None:
        """Wait for something this server is to see."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the server did not see it"
            time.sleep(0.01)

    def start(self) -> OpenAIServer:
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
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            sent = request.headers.get("authorization", "")
            return await _plain(writer, 401, _error(f"Incorrect API key provided: {sent}"))
        if request.path.endswith("/models") and not self._plan:
            return await _plain(writer, 200, {"object": "list", "data": [{"id": model} for model in self.models]})
        reply = self._plan.popleft() if self._plan else _echo(request.body)
        if reply.status != 200:
            return await _plain(writer, reply.status, reply.body, reply.headers)
        found = violations(request.body)
        if found:
            return await _plain(writer, 400, _error("; ".join(found)))
        watch = asyncio.ensure_future(reader.read(1))
        watch.add_done_callback(lambda ended: _note_close(request, ended))
        try:
            return await _stream(request, reply, writer, watch)
        except ConnectionError:
            request.closed_at = request.closed_at or time.monotonic()
            raise
        finally:
            # The next request is read once nobody else reads.
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _control(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        if request.path == "/control/plan":
            self.plan(*(Reply(**entry) for entry in request.body))
            return await _plain(writer, 200, {"planned": len(self._plan)})
        return await _plain(writer, 200, {"requests": [asdict(seen) for seen in self.requests]})


def _note_close(request: Received, ended: asyncio.Future[bytes]) -> None:
    if not ended.cancelled() and not request.finished:
        # A reset is an exception, an orderly close an empty read; both are looked at here.
        ended.exception()
        request.closed_at = request.closed_at or time.monotonic()


def _echo(body: Any) -> Reply:
    messages = body.get("messages", []) if isinstance(body, dict) else []
    said = [message.get("content") for message in messages if message.get("role") == "user"]
    return Reply(text=f"You said: {said[-1] if said else 'nothing'}")


def _error(message: str, code: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "error", "code": code}}


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
    return Received(method, path, headers, json.loads(raw) if raw else None, connection)


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


async def _stream(request: Received, reply: Reply, writer: asyncio.StreamWriter, watch: asyncio.Future[bytes]) -> bool:
    writer.write(_head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", **reply.headers}))
    for payload in _payloads(request.body, reply):
        if reply.fault is not None and request.events_sent >= reply.fault_after:
            break
        data = payload if isinstance(payload, str) else f"data: {json.dumps(payload)}\n\n"
        _write_chunk(writer, data.encode("utf-8", "surrogatepass"))
        await writer.drain()
        request.events_sent += 1
        if reply.delay:
            await asyncio.wait({watch}, timeout=reply.delay)
        if watch.done():
            return False
    return await _end(request, reply, writer, watch)


async def _end(request: Received, reply: Reply, writer: asyncio.StreamWriter, watch: asyncio.Future[bytes]) -> bool:
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
        _write_chunk(writer, f"data: {json.dumps(_error('the slot failed', 500))}\n\n".encode())
    elif reply.fault is None and reply.done:
        _write_chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def _write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _payloads(body: Any, reply: Reply) -> Iterator[Any]:
    if reply.events is not None:
        yield from reply.events
        return
    usage = reply.usage or {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        whole: dict[str, Any] = {
            "id": "chatcmpl-fake",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body.get("model"),
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }
        if reply.usage_at == "each" or (reply.usage_at in ("finish", "twice") and finish):
            whole["usage"] = usage
        return whole

    yield chunk({"role": "assistant", "content": None if reply.null_first else ""})
    for piece in _pieces(reply.reasoning, reply.piece):
        yield chunk({reply.reasoning_field: piece})
    for piece in _pieces(reply.text, reply.piece):
        yield chunk({"content": piece})
    if reply.refusal:
        yield chunk({"refusal": reply.refusal})
    for delta in _call_deltas(reply):
        yield chunk({"tool_calls": [delta]})
    yield chunk({}, reply.finish or ("tool_calls" if reply.calls else "stop"))
    asked = (body.get("stream_options") or {}).get("include_usage")
    if asked and reply.usage_at in ("end", "twice"):
        yield {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 1, "choices": [], "usage": usage}


def _pieces(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _call_deltas(reply: Reply) -> list[dict[str, Any]]:
    streams = [list(_deltas_of(number, call, reply)) for number, call in enumerate(reply.calls)]
    if not reply.interleaved:
        return [delta for stream in streams for delta in stream]
    longest = max((len(stream) for stream in streams), default=0)
    return [stream[turn] for turn in range(longest) for stream in streams if turn < len(stream)]


def _deltas_of(number: int, call: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    arguments = call.get("arguments", "{}")
    pieces = ["", *_pieces(arguments, reply.piece)] if isinstance(arguments, str) else [arguments]
    for turn, piece in enumerate(pieces):
        delta: dict[str, Any] = {"function": {"arguments": piece}}
        if reply.index != "none":
            delta["index"] = 0 if reply.index == "zero" else number
        own = call.get("id", f"call_{number}abc")
        match reply.ids:
            case "normal" if turn == 0:
                delta["id"] = own
            case "same" if turn == 0:
                delta["id"] = "call_0"
            case "every_chunk":
                delta["id"] = own
            case "churn":
                delta["id"] = f"{own}-{turn}"
        if turn == 0 or reply.name_in_each:
            delta["type"] = "function"
            delta["function"]["name"] = call["name"]
        yield delta
