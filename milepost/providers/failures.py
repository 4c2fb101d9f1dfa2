"""From what the library raises to a `ModelError`, by class and cause, never by text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import httpx2
from openai import APIStatusError
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
    UserError,
)

from milepost.domain.errors import (
    MilepostError,
    ModelError,
    ModelIncomplete,
    ModelRequestRejected,
    ModelTimedOut,
    ModelUnavailable,
)
from milepost.providers.faults import bounded, detail, quota_exhausted, status_error, unauthorized
from milepost.providers.provider import EndpointConfig
from milepost.security.redaction import Redactor


def model_error(error: Exception, config: EndpointConfig, redact: Redactor, *, begun: bool) -> MilepostError:
    """The error to raise for `error`; `begun` tells whether any event of the answer had come."""
    ours = next((cause for cause in _chain(error) if isinstance(cause, MilepostError)), None)
    if ours is not None:
        return ours
    status = next((cause.status_code for cause in _chain(error) if isinstance(cause, APIStatusError)), None)
    match error:
        case ModelAPIError():
            return _api_error(error, status, config, redact, begun)
        case httpx2.TimeoutException():
            return _timed_out(error, config)
        case httpx2.TransportError():
            return _connection(error, config, redact, begun)
        case UnexpectedModelBehavior():
            return ModelIncomplete(f"Provider '{config.name}' ended its answer before the first event.")
        case UserError():
            said = detail(str(error), redact)
            return ModelRequestRejected(f"The request cannot be sent to provider '{config.name}': {said}")
        case _:
            return ModelUnavailable(
                f"Provider '{config.name}' sent something that is not a chat completion ({type(error).__name__}).",
                fix="Check that `base_url` is an OpenAI-compatible endpoint.",
            )


def _api_error(
    error: ModelAPIError, status: int | None, config: EndpointConfig, redact: Redactor, begun: bool
) -> ModelError:
    in_stream = error.in_stream
    if isinstance(error, ModelHTTPError):
        status = error.status_code
    said = detail(_said(error), redact)
    match error:
        case ModelTimeoutError():
            return _timed_out(error, config)
        case ModelConnectionError():
            return _connection(error, config, redact, begun)
        case ModelQuotaExceededError():
            return quota_exhausted(bounded(f"Provider '{config.name}': {said}"), status)
        case ModelAuthenticationError():
            return unauthorized(bounded(f"Provider '{config.name}' refused the key: {said}"), config.api_key, status)
        case ModelContextWindowExceededError():
            return ModelRequestRejected(
                bounded(f"Provider '{config.name}': the conversation is longer than the model takes: {said}"),
                fix="Use a model with a larger window, or begin a new Session.",
                status=status,
            )
    if status is not None and status >= 300:
        return status_error(
            config.name, status, said, key_reference=config.api_key, retry_after=getattr(error, "retry_after", None)
        )
    if in_stream:
        return ModelUnavailable(bounded(f"Provider '{config.name}' reported an error in its answer: {said}"))
    if any(isinstance(cause, ValueError) for cause in _chain(error)):
        return ModelUnavailable(f"Provider '{config.name}' sent an event that is not JSON.")
    return ModelIncomplete(f"Provider '{config.name}' ended its answer without a finish reason; it is not complete.")


def _timed_out(error: Exception, config: EndpointConfig) -> ModelTimedOut:
    limits = config.timeouts
    if any(isinstance(cause, httpx2.ConnectTimeout) for cause in _chain(error)):
        return ModelTimedOut(
            f"Provider '{config.name}' could not be reached within {limits.connect:g} s.", field="timeouts.connect"
        )
    return ModelTimedOut(f"Provider '{config.name}' sent nothing for {limits.idle:g} s.", field="timeouts.idle")


def _connection(
    error: Exception, config: EndpointConfig, redact: Redactor, begun: bool
) -> ModelUnavailable | ModelIncomplete:
    last = list(_chain(error))[-1]
    said = detail(f"{type(last).__name__}: {last}", redact)
    if begun:
        return ModelIncomplete(bounded(f"The connection to provider '{config.name}' broke off in mid-answer ({said})."))
    return ModelUnavailable(
        bounded(f"Provider '{config.name}' cannot be reached ({said})."),
        fix=f"Check that the server behind {redact(config.base_url)} runs.",
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def _said(error: ModelAPIError) -> str:
    """What the provider said: the message inside the body if there is one, else the body, else the library's words."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        message = inner.get("message") or inner.get("detail") if isinstance(inner, Mapping) else inner
        return message if isinstance(message, str) else json.dumps(body, default=str)
    if body:
        return str(body)
    return error.message
