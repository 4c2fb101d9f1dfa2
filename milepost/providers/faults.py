"""From a provider's failure to a `ModelError`: by class, bounded, and free of secrets."""

from __future__ import annotations

import math
import re
from typing import Any

from milepost.domain.errors import (
    ModelAnswerMalformed,
    ModelContextTooLong,
    ModelError,
    ModelRateLimited,
    ModelRequestRejected,
    ModelTimedOut,
    ModelUnauthorized,
    ModelUnavailable,
)
from milepost.domain.tools import MAX_ERROR_TEXT_BYTES
from milepost.security.redaction import Redactor

MAX_DETAIL_CHARACTERS = 2_000
"""Of what a provider said; the whole message stays below `MAX_ERROR_TEXT_BYTES`."""

MAX_RETRY_AFTER_SECONDS = 3_600.0

TOO_LONG = "the conversation is longer than the model takes"

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|[\ud800-\udfff]")
_SPACES = re.compile(r"\s+")


class Refusal(Exception):
    """What a provider answered instead of an answer.

    Attributes:
        status: HTTP status, or the one that an error inside a stream stands for.
        body: JSON, or a text where it is none.
        retry_after: seconds, where the body says so.
        like: the status it means, where the body says so better than `status`.
    """

    def __init__(self, status: int, body: Any, *, retry_after: float | None = None, like: int | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.retry_after = retry_after
        self.like = like


def detail(text: str, redact: Redactor) -> str:
    """One readable line of what a provider said: secrets hidden, control characters out, length bounded."""
    # Cut generously before the regular expressions run, finely afterwards: a body may have megabytes.
    text = redact(redact.cut(text, 8 * MAX_DETAIL_CHARACTERS))
    text = _SPACES.sub(" ", _CONTROLS.sub(" ", text)).strip()
    return text if len(text) <= MAX_DETAIL_CHARACTERS else text[: MAX_DETAIL_CHARACTERS - 1] + "…"


def bounded(text: str) -> str:
    """Cut a message to `MAX_ERROR_TEXT_BYTES` of UTF-8."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_ERROR_TEXT_BYTES:
        return text
    return data[: MAX_ERROR_TEXT_BYTES - 3].decode("utf-8", "ignore") + "…"


def retry_seconds(value: float | None) -> float | None:
    """A usable Retry-After: finite, not negative, at most an hour."""
    if value is None or not math.isfinite(value):
        return None
    return min(max(value, 0.0), MAX_RETRY_AFTER_SECONDS)


def status_error(
    provider: str,
    status: int,
    said: str,
    *,
    key_reference: str | None = None,
    retry_after: float | None = None,
    like: int | None = None,
) -> ModelError:
    """The error for an HTTP status. `said` is the provider's own text, already fit to show.

    `like` is the status that it means, where the provider's body says so better than `status`.
    """
    said = f": {said}" if said else "."
    message = bounded(f"Provider '{provider}' answered {status}{said}")
    after = retry_seconds(retry_after)
    match like or status:
        case 401 | 403:
            return unauthorized(message, key_reference, status)
        case 429:
            return ModelRateLimited(message, retry_after=after, status=status)
        case 408 | 409 | 425:
            return ModelUnavailable(message, retry_after=after, status=status)
        case 402:
            return quota_exhausted(message, status)
        case other if 300 <= other < 400:
            return ModelRequestRejected(
                message,
                fix="The address redirects, which is not followed. Set `base_url` to the final address.",
                status=status,
            )
        case 504:
            return ModelTimedOut(message, retry_after=after, status=status)
        case other if other >= 500:
            return ModelUnavailable(message, retry_after=after, status=status)
        case 404:
            fix = "Check the model's name and `base_url` of the provider."
            return ModelRequestRejected(message, fix=fix, status=status)
        case _:
            return ModelRequestRejected(message, status=status)


def context_too_long(message: str, status: int | None) -> ModelContextTooLong:
    """The conversation is longer than the model takes."""
    fix = "Set `context_tokens` of the provider, use a model with a larger window, or begin a new Session."
    return ModelContextTooLong(message, fix=fix, status=status)


def unauthorized(message: str, key_reference: str | None, status: int | None) -> ModelUnauthorized:
    """401 and 403; the fix names the key's reference, never the key."""
    fix = (
        f"Check that {key_reference} holds a valid key that may use this model."
        if key_reference
        else "Set `api_key` of the provider to a reference such as env:NAME."
    )
    return ModelUnauthorized(message, fix=fix, status=status)


def quota_exhausted(message: str, status: int | None) -> ModelRequestRejected:
    """The account has no credit left; waiting does not help."""
    fix = "Check the balance and limits of the provider's account."
    return ModelRequestRejected(message, fix=fix, status=status)


def malformed(provider: str, value: object, what: str, wanted: str) -> ModelAnswerMalformed:
    """A part of an answer that nobody can read. `what` and `wanted` say what came as what."""
    return ModelAnswerMalformed(
        f"Provider '{provider}' sent {what} as a JSON {type(value).__name__}, not as {wanted}; "
        "the answer cannot be read.",
        fix="Check the server's version and the model's chat template; its other answers are likely to be the same.",
    )
