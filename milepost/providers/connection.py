"""From a failed HTTP exchange to a `ModelError`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import httpx2

from milepost.domain.errors import MilepostError, ModelIncomplete, ModelTimedOut, ModelUnavailable
from milepost.providers.faults import bounded, detail
from milepost.providers.provider import EndpointConfig
from milepost.security.redaction import Redactor


def exchange_error(
    error: httpx2.TransportError, config: EndpointConfig, redact: Redactor, *, begun: bool
) -> MilepostError:
    """The error to raise for a connection that failed; `begun` tells whether any event of the answer had come."""
    for cause in causes(error):
        if isinstance(cause, MilepostError):
            return cause
    if isinstance(error, httpx2.TimeoutException):
        return timed_out(error, config)
    return broken(error, config, redact, begun=begun)


def timed_out(error: BaseException, config: EndpointConfig) -> ModelTimedOut:
    """The limit that passed: to connect, or between two pieces."""
    limits = config.timeouts
    if any(isinstance(cause, httpx2.ConnectTimeout) for cause in causes(error)):
        return ModelTimedOut(
            f"Provider '{config.name}' could not be reached within {limits.connect:g} s.", field="timeouts.connect"
        )
    return ModelTimedOut(f"Provider '{config.name}' sent nothing for {limits.idle:g} s.", field="timeouts.idle")


def broken(
    error: BaseException, config: EndpointConfig, redact: Redactor, *, begun: bool
) -> ModelUnavailable | ModelIncomplete:
    """A connection that broke off, or was never made."""
    last = list(causes(error))[-1]
    said = detail(f"{type(last).__name__}: {last}", redact)
    if begun:
        return ModelIncomplete(bounded(f"The connection to provider '{config.name}' broke off in mid-answer ({said})."))
    return ModelUnavailable(
        bounded(f"Provider '{config.name}' cannot be reached ({said})."),
        fix=f"Check that the server behind {redact(config.base_url)} runs.",
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it, outermost first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds of a Retry-After header, as a number or a date (RFC 9110, 10.2.3); None for anything else."""
    value = headers.get("retry-after", "").strip()
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time()
        except (ValueError, TypeError):
            return None
    return seconds if seconds >= 0 else None


def parsed(body: bytes | str) -> Any:
    """A JSON body, or its text when it is none."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def said(body: Any) -> str:
    """What a provider said: the message inside a body if there is one, else the whole body."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        if isinstance(inner, Mapping):
            inner = inner.get("message") or inner.get("detail") or inner
        return inner if isinstance(inner, str) else json.dumps(inner, default=str)
    return body if isinstance(body, str) else json.dumps(body, default=str)
