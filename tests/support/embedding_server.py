"""A fake service of embeddings with its own wire code: OpenAI's, Ollama's and Gemini's paths, and rules of dimensions.

A vector is made of the bytes of its text, so equal texts have equal vectors and nothing else is promised.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

MODELS: dict[str, tuple[int, bool]] = {
    "text-embedding-3-small": (1536, True),
    "text-embedding-ada-002": (1536, False),
    "nomic-embed-text": (768, False),
    "gemini-embedding-001": (3072, True),
    "own-model": (32, False),
}
"""Dimensions of a model, and whether fewer can be asked for."""

MAX_TEXT = 32_000


@dataclass
class Asked:
    """A request that came. `texts` are what was to be embedded."""

    path: str
    headers: dict[str, str]
    body: Any
    texts: list[str]


@dataclass
class Fault:
    """An answer instead of the right one."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


def vector(text: str, size: int) -> list[float]:
    """What the service says of a text: not of length 1."""
    found: list[float] = []
    block = text.encode()
    while len(found) < size:
        block = hashlib.sha256(block).digest()
        found += [byte / 64 - 2 for byte in block]
    return found[:size]


class EmbeddingServer:
    """Runs on 127.0.0.1 in threads of its own."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.asked: list[Asked] = []
        self.faults: deque[Fault] = deque()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, answer, extra = server.answer(self.path, headers, body)
                data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **extra}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, headers: dict[str, str], body: Any) -> tuple[int, Any, dict[str, str]]:
        texts, model, size = _read(path, body)
        self.asked.append(Asked(path, headers, body, texts))
        presented = headers.get("x-goog-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        if self.key and presented != self.key:
            return 401, {"error": {"message": f"Incorrect API key provided: {presented}"}}, {}
        if self.faults:
            fault = self.faults.popleft()
            return fault.status, fault.body, fault.headers
        if model not in MODELS:
            return 404, {"error": {"message": f"The model `{model}` does not exist"}}, {}
        own, reducible = MODELS[model]
        if size is not None and not reducible:
            return 400, {"error": {"message": "This model does not support specifying dimensions."}}, {}
        if size is not None and not 1 <= size <= own:
            return 400, {"error": {"message": f"dimensions must be at most {own}"}}, {}
        if any(not text or len(text) > MAX_TEXT for text in texts):
            return 400, {"error": {"message": "an input is empty or too long"}}, {}
        vectors = [vector(text, size or own) for text in texts]
        if path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": n, "embedding": found} for n, found in enumerate(vectors)]
            # Nothing says that the order is that of the request.
            return 200, {"object": "list", "data": data[::-1], "model": model}, {}
        if path.endswith("/api/embed"):
            return 200, {"model": model, "embeddings": vectors}, {}
        return 200, {"embeddings": [{"values": found} for found in vectors]}, {}


def _read(path: str, body: Any) -> tuple[list[str], str, int | None]:
    if path.endswith(":batchEmbedContents"):
        requests = body["requests"]
        texts = [request["content"]["parts"][0]["text"] for request in requests]
        return texts, requests[0]["model"].removeprefix("models/"), requests[0].get("outputDimensionality")
    return body["input"], body["model"], body.get("dimensions")
