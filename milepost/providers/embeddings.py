"""Embeddings of a configured provider: its address, credential and headers, one request for each batch of texts.

Wire formats: OpenAI's `POST /embeddings` (https://platform.openai.com/docs/api-reference/embeddings), which OpenRouter,
Mistral and most servers have too, Ollama's `POST /api/embed`, Gemini's `POST /models/MODEL:batchEmbedContents`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, sqrt
from struct import pack
from typing import Any
from urllib.parse import quote

import httpx2

from milepost.domain.embeddings import EmbeddingSpace, RemoteEmbedder
from milepost.domain.errors import EmbeddingFailed, MilepostError, ModelError
from milepost.domain.providers import GeminiProvider, HttpProvider, MistralProvider, OllamaProvider
from milepost.ports.secrets import SecretStore
from milepost.providers import connection
from milepost.providers.faults import detail, status_error
from milepost.providers.http import EndpointTransport, http_client

BATCH = 64
MAX_TEXT_BYTES = 16_000
"""Of a text that are sent; models read about 8,000 tokens and refuse a request with more."""

MAX_TRIES = 3
PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 20.0
MAX_CALLS = 4
"""Requests of one embedder at a time."""


@dataclass(frozen=True, slots=True)
class _Wire:
    """How a service is asked, and where its answer has the vectors."""

    path: Callable[[str], str]
    body: Callable[[RemoteEmbedder, Sequence[str]], dict[str, Any]]
    vectors: Callable[[Any], Sequence[Any]]
    key_header: str = "Authorization"


class ProviderEmbedder:
    """Embedder of the space `PROVIDER/MODEL`."""

    neural = True

    def __init__(self, config: RemoteEmbedder, provider: HttpProvider, secrets: SecretStore, seconds: float) -> None:
        self.space = EmbeddingSpace(f"{config.provider}/{config.model}", config.dimensions)
        self._config = config
        self._provider = provider
        self._wire = _wire(provider)
        self._transport = EndpointTransport(provider, secrets, key_header=self._wire.key_header)
        self._http = http_client(provider, self._transport)
        self._seconds = seconds
        self._places = asyncio.Semaphore(MAX_CALLS)

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """See `ports.embeddings.Embedder`. A text without anything but spaces has the zero vector and is not sent."""
        sent = [index for index, text in enumerate(texts) if text.strip()]
        vectors = [bytes(self.space.vector_bytes)] * len(texts)
        try:
            async with asyncio.timeout(self._seconds):
                for first in range(0, len(sent), BATCH):
                    indexes = sent[first : first + BATCH]
                    found = await self._asked([_cut(texts[index]) for index in indexes])
                    for index, vector in zip(indexes, found, strict=True):
                        vectors[index] = vector
        except TimeoutError:
            raise EmbeddingFailed(
                f"Provider '{self._provider.name}' did not embed {len(sent)} texts within {self._seconds:g} s.",
                fix="Raise embeddings.seconds.",
            ) from None
        except EmbeddingFailed:
            raise
        except MilepostError as error:
            raise EmbeddingFailed(error.message, fix=error.fix) from error
        return vectors

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _asked(self, texts: Sequence[str]) -> list[bytes]:
        for number in range(1, MAX_TRIES + 1):
            try:
                async with self._places:
                    return await self._once(texts)
            except ModelError as error:
                if not error.retryable or number == MAX_TRIES:
                    raise
                pause = getattr(error, "retry_after", None) or PAUSE_SECONDS * 2**number
            await asyncio.sleep(min(pause, MAX_PAUSE_SECONDS))
        raise AssertionError("the last try returns or raises")

    async def _once(self, texts: Sequence[str]) -> list[bytes]:
        self._transport.refresh()
        url = self._provider.base_url.rstrip("/") + self._wire.path(self._config.model)
        content = json.dumps(self._wire.body(self._config, texts), ensure_ascii=False).encode("utf-8", "replace")
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            response = await self._http.post(url, content=content, headers=headers)
        except httpx2.TransportError as error:
            # Without a cause: the library's errors hold bodies and headers.
            raise connection.exchange_error(error, self._provider, self._transport.redact, begun=False) from None
        body = connection.parsed(response.content)
        if response.status_code != 200:
            raise status_error(
                self._provider.name,
                response.status_code,
                detail(connection.said(body), self._transport.redact),
                key_reference=self._provider.api_key,
                retry_after=connection.retry_after(response.headers),
            )
        return self._read(body, len(texts))

    def _read(self, body: Any, count: int) -> list[bytes]:
        try:
            vectors = self._wire.vectors(body)
        except (KeyError, TypeError, ValueError, AttributeError):
            vectors = []
        if len(vectors) != count:
            raise EmbeddingFailed(
                f"Provider '{self._provider.name}' answered with {len(vectors)} vectors for {count} texts.",
                fix=f"Check that '{self._config.model}' is an embedding model of this provider.",
            )
        return [self._unit(vector) for vector in vectors]

    def _unit(self, vector: Any) -> bytes:
        if not isinstance(vector, list) or not all(type(item) in (int, float) and isfinite(item) for item in vector):
            raise EmbeddingFailed(f"Provider '{self._provider.name}' sent a vector with parts that are no numbers.")
        if len(vector) != self.space.dimensions:
            raise EmbeddingFailed(
                f"Provider '{self._provider.name}' sent {len(vector)} dimensions for '{self._config.model}', "
                f"and {self.space.dimensions} are configured.",
                fix=f"Set the embedder's dimensions to {len(vector)}, or name a model that supports the size.",
            )
        length = sqrt(fsum(item * item for item in vector))
        return pack(f"<{len(vector)}f", *(item / length if length else 0.0 for item in vector))


def _cut(text: str) -> str:
    data = text.encode("utf-8", "replace")
    return data[:MAX_TEXT_BYTES].decode("utf-8", "ignore") if len(data) > MAX_TEXT_BYTES else text


# --- wire formats -----------------------------------------------------------------------------------------------


def _wire(provider: HttpProvider) -> _Wire:
    match provider:
        case OllamaProvider():
            return _OLLAMA
        case GeminiProvider():
            return _GEMINI
        case MistralProvider():
            return _MISTRAL
        case _:
            return _OPENAI


def _openai_body(config: RemoteEmbedder, texts: Sequence[str], size: str = "dimensions") -> dict[str, Any]:
    body: dict[str, Any] = {"model": config.model, "input": list(texts), "encoding_format": "float"}
    return {**body, size: config.dimensions} if config.request_dimensions else body


def _openai_vectors(body: Any) -> Sequence[Any]:
    return [item["embedding"] for item in sorted(body["data"], key=lambda item: int(item["index"]))]


def _ollama_body(config: RemoteEmbedder, texts: Sequence[str]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": config.model, "input": list(texts), "truncate": True}
    return {**body, "dimensions": config.dimensions} if config.request_dimensions else body


def _gemini_body(config: RemoteEmbedder, texts: Sequence[str]) -> dict[str, Any]:
    size = {"outputDimensionality": config.dimensions} if config.request_dimensions else {}
    model = f"models/{config.model}"
    return {"requests": [{"model": model, "content": {"parts": [{"text": text}]}, **size} for text in texts]}


_OPENAI = _Wire(lambda _model: "/embeddings", _openai_body, _openai_vectors)
_MISTRAL = _Wire(
    lambda _model: "/embeddings",
    lambda config, texts: _openai_body(config, texts, size="output_dimension"),
    _openai_vectors,
)
_OLLAMA = _Wire(lambda _model: "/api/embed", _ollama_body, lambda body: list(body["embeddings"]))
_GEMINI = _Wire(
    lambda model: f"/models/{quote(model)}:batchEmbedContents",
    _gemini_body,
    lambda body: [item["values"] for item in body["embeddings"]],
    key_header="x-goog-api-key",
)
