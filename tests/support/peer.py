"""A peer on the loopback interface that writes down every request it gets, and behaves as its path says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

LONGEST_SLEEP = 20.0


@dataclass(frozen=True)
class Request:
    """One request as it arrived; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Respond = Callable[[Request], tuple[int, bytes]]


@dataclass
class Peer:
    """`requests` is the log. Paths: `/ok`, `/status/N`, `/slow`, `/redirect`, `/big`, `/gzip`, `/drop`, `/echo`; others
    go to `respond`.
    """

    respond: Respond = lambda request: (200, b"done")
    requests: list[Request] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def keys(self, header: str = "idempotency-key") -> list[str | None]:
        """The idempotency key of each request, in order."""
        return [request.headers.get(header) for request in self.requests]

    def arrived(self, count: int = 1, seconds: float = 30) -> bool:
        """Wait until so many requests have arrived."""
        deadline = time.monotonic() + seconds
        while len(self.requests) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return len(self.requests) >= count

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _handler(peer: Peer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, self.rfile.read(length))
            peer.requests.append(request)
            path = self.path.partition("?")[0]
            if path == "/drop":
                self.close_connection = True
                return
            if path == "/slow":
                peer.released.wait(LONGEST_SLEEP)
            extra: dict[str, str] = {}
            if path.startswith("/status/"):
                status, body = int(path.removeprefix("/status/")), b"the peer says why"
            elif path == "/redirect":
                status, body, extra = 302, b"", {"Location": f"{peer.url}/ok"}
            elif path == "/big":
                status, body = 200, b"x" * 3_000_000
            elif path == "/gzip":
                status, body, extra = 200, b"not really", {"Content-Encoding": "gzip"}
            elif path == "/echo":
                status, body = 200, json.dumps(headers).encode()
            elif path in ("/ok", "/slow"):
                status, body = 200, b"done"
            else:
                status, body = peer.respond(request)
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **extra}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler
