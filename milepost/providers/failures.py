"""From what the library raises to a `ModelError`, by class and cause; by text only for `too_long`."""

from __future__ import annotations

import json
from collections.abc import Mapping

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
    ModelUnavailable,
)
from milepost.providers.connection import broken, causes, timed_out
from milepost.providers.faults import (
    TOO_LONG,
    bounded,
    context_too_long,
    detail,
    quota_exhausted,
    status_error,
    unauthorized,
)
from milepost.providers.provider import EndpointConfig
from milepost.providers.too_long import STATUSES, too_long
from milepost.security.redaction import Redactor


def model_error(error: Exception, config: EndpointConfig, redact: Redactor, *, begun: bool) -> MilepostError:
    """The error to raise for `error`; `begun` tells whether any event of the answer had come."""
    ours = next((cause for cause in causes(error) if isinstance(cause, MilepostError)), None)
    if ours is not None:
        return ours
    status = next((cause.status_code for cause in causes(error) if isinstance(cause, APIStatusError)), None)
    match error:
        case ModelAPIError():
            return _api_error(error, status, config, redact, begun)
        case httpx2.TimeoutException():
            return timed_out(error, config)
        case httpx2.TransportError():
            return broken(error, config, redact, begun=begun)
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
            return timed_out(error, config)
        case ModelConnectionError():
            return broken(error, config, redact, begun=begun)
        case ModelQuotaExceededError():
            return quota_exhausted(bounded(f"Provider '{config.name}': {said}"), status)
        case ModelAuthenticationError():
            return unauthorized(bounded(f"Provider '{config.name}' refused the key: {said}"), config.api_key, status)
        case ModelContextWindowExceededError() if status is None or status in STATUSES:
            return context_too_long(bounded(f"Provider '{config.name}': {TOO_LONG}: {said}"), status)
    if too_long(status, getattr(error, "body", None), said):
        return context_too_long(bounded(f"Provider '{config.name}': {TOO_LONG}: {said}"), status)
    if status is not None and status >= 300:
        return status_error(
            config.name, status, said, key_reference=config.api_key, retry_after=getattr(error, "retry_after", None)
        )
    if in_stream:
        return ModelUnavailable(bounded(f"Provider '{config.name}' reported an error in its answer: {said}"))
    if any(isinstance(cause, ValueError) for cause in causes(error)):
        return ModelUnavailable(f"Provider '{config.name}' sent an event that is not JSON.")
    return ModelIncomplete(f"Provider '{config.name}' ended its answer without a finish reason; it is not complete.")


def _said(error: ModelAPIError) -> str:
    """What the provider said: the message inside the body if there is one, else the body, else the library's words."""
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        inner = body.get("error", body)
        message = inner.get("message") or inner.get("detail") if isinstance(inner, Mapping) else inner
        return message if isinstance(message, str) else json.dumps(body, default=str)
    if body or isinstance(error, ModelHTTPError):
        # The library's words for an empty body say nothing that the status does not say.
        return str(body or "")
    return error.message
