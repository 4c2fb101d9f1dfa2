"""Mapping domain errors to Temporal's `ApplicationError`; the type is the stable code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError

from milepost.contracts.activities import boundary_text
from milepost.domain.errors import MilepostError, ModelError


@contextmanager
def boundary() -> Iterator[None]:
    """Turn a MilepostError into an ApplicationError that Temporal retries only if the error says so.

    An error that nobody foresaw gets the code `internal` and is retried.
    """
    try:
        yield
    except MilepostError as error:
        raise application_error(error) from error
    except FailureError:
        raise
    except Exception as error:
        text = boundary_text(f"{type(error).__name__}: {error}")
        raise ApplicationError(text, type=MilepostError.code) from error


def application_error(error: MilepostError) -> ApplicationError:
    """The ApplicationError of a domain error; Retry-After becomes the next retry delay."""
    after = error.retry_after if isinstance(error, ModelError) else None
    return _application_error(error, retryable=error.retryable, after=after)


def retry_error(error: MilepostError, after: float | None) -> ApplicationError:
    """The ApplicationError that has Temporal make the next attempt, whatever the error's class says.

    `after` is seconds; None leaves the delay to the retry policy.
    """
    return _application_error(error, retryable=True, after=after)


def _application_error(error: MilepostError, *, retryable: bool, after: float | None) -> ApplicationError:
    # A delay of nothing would mean the policy's own.
    delay = None if after is None else timedelta(seconds=max(after, 0.001))
    return ApplicationError(
        boundary_text(str(error)),
        type=error.code,
        non_retryable=not retryable,
        next_retry_delay=delay,
        # The ledger records it and a person is told in one sentence; a traceback in their terminal helps nobody.
        category=ApplicationErrorCategory.BENIGN,
    )
