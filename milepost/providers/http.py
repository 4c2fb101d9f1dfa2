"""The one place that makes HTTP clients for model endpoints.

No redirects, nothing from the environment, bounded bodies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx2

from milepost.domain.errors import ModelAnswerTooLarge, ModelRequestRejected, ModelUnauthorized
from milepost.ports.secrets import SecretStore
from milepost.providers.provider import EndpointConfig
from milepost.security.redaction import Redactor

ERROR_BODY_BYTES = 64 * 1024
"""Of an error response; the rest is not read and its connection is closed."""

_KEPT_HEADERS = frozenset({b"host", b"accept", b"content-type", b"content-length"})
"""Set by the library and sent on; its other headers describe this machine or come from the environment."""


def http_client(config: EndpointConfig, transport: EndpointTransport) -> httpx2.AsyncClient:
    """A client whose every request goes through `transport`."""
    return httpx2.AsyncClient(
        transport=transport, timeout=http_timeout(config), follow_redirects=False, trust_env=False
    )


def http_timeout(config: EndpointConfig) -> httpx2.Timeout:
    """Connect, and the longest wait between two pieces of a body."""
    return httpx2.Timeout(config.timeouts.idle, connect=config.timeouts.connect)


def key_headers(config: EndpointConfig, idempotency_key: str) -> dict[str, str]:
    """The headers of one call: its idempotency key, where the endpoint takes one."""
    return {} if config.idempotency_header is None else {config.idempotency_header: idempotency_key}


class EndpointTransport(httpx2.AsyncBaseTransport):
    """Puts the configured headers on each request and bounds each response.

    Credentials are added here, after every library, so that none of them holds, logs or reports a key.
    """

    def __init__(
        self,
        config: EndpointConfig,
        secrets: SecretStore,
        *,
        key_header: str = "Authorization",
        fixed: Mapping[str, str] | None = None,
    ) -> None:
        """`key_header` carries the API key, as a bearer token if it is `Authorization`; `fixed` are headers of the
        wire format, which configured ones of the same name replace."""
        self._config = config
        self._secrets = secrets
        self._key_header = key_header
        self._fixed = {"User-Agent": "milepost", "Accept-Encoding": "identity", **(fixed or {})}
        self._inner = httpx2.AsyncHTTPTransport(
            trust_env=False, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8)
        )
        self._headers: list[tuple[bytes, bytes]] = []
        self._kept = _KEPT_HEADERS | {name.lower().encode("ascii") for name in key_headers(config, "")}
        self.redact = Redactor()

    def refresh(self) -> None:
        """Resolve the secret references again, so that a changed key counts from the next call.

        Raises:
            SecretMissing: a reference does not resolve.
            ModelUnauthorized: a value cannot be a header.
        """
        config = self._config
        values = dict(config.headers)
        hidden: list[str] = []
        for header, reference in config.secret_headers.items():
            values[header] = self._secret(reference)
            hidden.append(values[header])
        if config.api_key:
            key = self._secret(config.api_key)
            values[self._key_header] = f"Bearer {key}" if self._key_header == "Authorization" else key
            hidden.append(key)
        configured = {name.lower() for name in values}
        values = {name: value for name, value in self._fixed.items() if name.lower() not in configured} | values
        self._headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in values.items()]
        # Earlier values stay hidden: calls that were made with them may still be answered.
        self.redact.learn(*hidden)

    def _secret(self, reference: str) -> str:
        value = self._secrets.resolve(reference)
        if not value or not value.isascii() or not value.isprintable() or value != value.strip():
            # Said here, without the value: the HTTP library would quote it.
            raise ModelUnauthorized(
                f"Provider '{self._config.name}': what {reference} holds cannot be sent as a header.",
                field="api_key",
                fix="It must be one line of printable ASCII without spaces around it.",
            )
        return value

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._check_size(request)
        kept = [(name, value) for name, value in request.headers.raw if name.lower() in self._kept]
        request.headers = httpx2.Headers([*kept, *self._headers])
        response = await self._inner.handle_async_request(request)
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.lower() not in ("", "identity"):
            await response.aclose()
            said = self.redact(self.redact.cut(encoding, 32))
            raise ModelRequestRejected(
                f"Provider '{self._config.name}' sent its answer compressed ({said}) though asked not to.",
                fix="Switch off compression for this route in the server or the proxy before it.",
            )
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - narrows the library's union
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_BoundedStream(
                response.stream, self._config, failed=response.status_code >= 300, separator=_separator(response)
            ),
            extensions=response.extensions,
        )

    def _check_size(self, request: httpx2.Request) -> None:
        size, limit = int(request.headers.get("content-length", "0")), self._config.limits.request_bytes
        if size > limit:
            name = self._config.name
            raise ModelRequestRejected(
                f"The request to provider '{name}' has {size:,} bytes, and {limit:,} are allowed.",
                field="limits.request_bytes",
                fix=f"Begin a new Session, send smaller images, or raise providers.{name}.limits.request_bytes.",
            )

    async def aclose(self) -> None:
        await self._inner.aclose()


def _separator(response: httpx2.Response) -> bytes:
    """What ends an event: an empty line in server-sent events, else a line end."""
    return b"\n\n" if response.headers.get("content-type", "").startswith("text/event-stream") else b"\n"


class _BoundedStream(httpx2.AsyncByteStream):
    """A body of at most so many bytes, each event of it as well; of a refusal, its beginning."""

    def __init__(
        self, inner: httpx2.AsyncByteStream, config: EndpointConfig, *, failed: bool, separator: bytes
    ) -> None:
        self._inner = inner
        self._config = config
        self._failed = failed
        self._separator = separator

    async def __aiter__(self) -> AsyncIterator[bytes]:
        limits = self._config.limits
        limit = ERROR_BODY_BYTES if self._failed else limits.response_bytes
        seen = 0
        event = _EventSize(self._separator)
        async for piece in self._inner:
            seen += len(piece)
            if seen > limit:
                if self._failed:
                    return
                raise self._too_large("response_bytes", limit, "bytes in one answer")
            if not self._failed and event.largest(piece) > limits.event_bytes:
                raise self._too_large("event_bytes", limits.event_bytes, "bytes in one event")
            yield piece

    def _too_large(self, field: str, limit: int, what: str) -> ModelAnswerTooLarge:
        return ModelAnswerTooLarge(
            f"Provider '{self._config.name}' sent more than {limit} {what}.",
            field=f"limits.{field}",
            fix=f"Ask for a shorter answer, or raise providers.{self._config.name}.limits.{field}.",
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


class _EventSize:
    """How large the events of a stream are, whichever pieces they come in. Events end with `separator`."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self._tail = b""
        self._open = 0

    def largest(self, piece: bytes) -> int:
        """Bytes of the largest event that this piece ended or went on with."""
        # Line ends may be CRLF, and a separator may lie across two pieces.
        text = self._tail + piece.replace(b"\r", b"")
        self._open -= len(self._tail)
        largest, start = 0, 0
        while (end := text.find(self._separator, start)) >= 0:
            largest = max(largest, self._open + end - start)
            self._open = 0
            start = end + len(self._separator)
        self._open += len(text) - start
        rest = text[start:]
        self._tail = rest[-(len(self._separator) - 1) :] if len(self._separator) > 1 else b""
        return max(largest, self._open)
