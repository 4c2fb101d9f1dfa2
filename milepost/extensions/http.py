"""Requests to the peers of tools: no redirects, nothing from the environment, bounded answers.

The address is the configuration's alone; nothing that a model says changes where a request goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from milepost.domain.errors import OutcomeUnknown, ToolFailed, ToolUnavailable
from milepost.domain.extensions import HttpPeer
from milepost.ports.secrets import SecretStore
from milepost.security.redaction import Redactor

CONNECT_SECONDS = 10.0
MAX_CONNECTIONS = 64
_END_CHARACTERS = 16 * 1024
BODILESS = frozenset({"GET", "DELETE"})
"""Methods whose arguments travel in the query."""

PASSING = frozenset({408, 425, 429, 503})
"""Statuses with which a peer says that it did nothing and may be asked again."""

COMPRESSED = "[the answer came compressed although asked not to, and is not shown]"

GATEWAY = frozenset({502, 504})
"""Statuses of a proxy that does not know what became of the request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A peer's answer. `truncated` tells that it was longer than what was read."""

    status: int
    text: str
    truncated: bool


class PeerClient:
    """One client for all peers. A connection serves one request.

    A kept one that the peer has closed meanwhile would leave open whether a request on it arrived.
    """

    def __init__(self, secrets: SecretStore, redactor: Redactor | None = None) -> None:
        self._secrets = secrets
        self.redactor = redactor or Redactor()
        """Hides what a cut would leave of a secret; see `Redactor.cut`."""
        self._http = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=0),
        )

    async def send(self, owner: str, request: httpx.Request, seconds: float, limit: int) -> Reply:
        """Send it and read at most `limit` bytes of the answer, all within `seconds`. `owner` is for texts.

        Raises:
            ToolFailed: the peer could not be reached; nothing was sent.
            OutcomeUnknown: no whole answer came.
        """
        request.extensions["timeout"] = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds)).as_dict()
        try:
            async with asyncio.timeout(seconds):
                response = await self._http.send(request, stream=True)
                try:
                    return await _read(response, limit, self.redactor)
                finally:
                    await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol) as error:
            said = f"{owner} cannot be reached ({type(error).__name__})."
            raise ToolFailed(said, retryable_now=True) from error
        except (TimeoutError, httpx.TimeoutException) as error:
            raise OutcomeUnknown(f"{owner} did not answer within {seconds:g} s.") from error
        except httpx.HTTPError as error:
            raise OutcomeUnknown(
                f"The connection to {owner} broke off ({type(error).__name__}).", in_time=True
            ) from error

    def request(
        self, peer: HttpPeer, body: bytes | None, query: Mapping[str, str] | None, key: str | None
    ) -> httpx.Request:
        """A request with the peer's headers, and the idempotency key if there is one.

        Raises:
            ToolUnavailable: a secret reference does not resolve, or its value cannot be a header.
        """
        secret = {name: self._secret(reference) for name, reference in peer.secret_headers.items()}
        try:
            # Names are the same in any case; what comes later replaces what was there.
            headers = httpx.Headers({"User-Agent": "milepost", "Accept": "*/*", "Accept-Encoding": "identity"})
            if body is not None:
                headers["Content-Type"] = "application/json"
            for name, value in {**peer.headers, **secret, "Connection": "close"}.items():
                headers[name] = value
            if key is not None:
                headers[peer.idempotency_header] = key
            url = httpx.URL(peer.url)
            if query:
                # Beside the query that the configured address has.
                url = url.copy_merge_params(query)
            return self._http.build_request(peer.method, url, content=body, headers=headers)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            # Said here, without the value: the library would quote it.
            raise ToolUnavailable(f"A request to {peer.url} cannot be made ({type(error).__name__}).") from None

    def _secret(self, reference: str) -> str:
        value = self._secrets.resolve(reference)
        if not value.isascii() or not value.isprintable() or value != value.strip():
            raise ToolUnavailable(
                f"What {reference} holds cannot be sent as a header.",
                field=reference,
                fix="It must be one line of printable ASCII without spaces around it.",
            )
        return value

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


def cut(text: str, limit: int, redactor: Redactor) -> str:
    """The first `limit` characters of a long text; looks only at its end, for a secret that the cut goes through."""
    start = max(0, limit - _END_CHARACTERS)
    return text[:start] + redactor.cut(text[start:], limit - start)


async def _read(response: httpx.Response, limit: int, redactor: Redactor) -> Reply:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        return Reply(response.status_code, COMPRESSED, False)
    data = bytearray()
    async for piece in response.aiter_raw():
        data += piece[: limit + 1 - len(data)]
        if len(data) > limit:
            break
    text = bytes(data).decode("utf-8", "replace")
    truncated = len(data) > limit
    return Reply(response.status_code, cut(text, len(text) - 1, redactor) if truncated else text, truncated)
