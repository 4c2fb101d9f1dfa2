"""Errors on the command line: one exit code per kind, one sentence (or one JSON object) on standard error."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from milepost.domain.errors import ErrorKind, MilepostError


class Exit(IntEnum):
    """Exit codes; documented in docs/cli.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NEEDS_PERSON = 3
    UNAVAILABLE = 4
    STORAGE = 5
    STOPPED = 130


EXIT_BY_KIND: dict[ErrorKind, Exit] = {
    ErrorKind.INVALID: Exit.USAGE,
    ErrorKind.TOO_LARGE: Exit.USAGE,
    ErrorKind.NOT_FOUND: Exit.FAILED,
    ErrorKind.CONFLICT: Exit.FAILED,
    ErrorKind.FORBIDDEN: Exit.FAILED,
    ErrorKind.FAILED: Exit.FAILED,
    ErrorKind.NEEDS_PERSON: Exit.NEEDS_PERSON,
    ErrorKind.UNAVAILABLE: Exit.UNAVAILABLE,
    ErrorKind.STORAGE: Exit.STORAGE,
}


class RemoteFailure(MilepostError):
    """A failure that the running instance reported; `remote_code` is its stable code."""

    def __init__(
        self, message: str, *, code: str, kind: ErrorKind, field: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(message, field=field, fix=fix)
        self.remote_code = code
        self.remote_kind = kind


class ConnectionLost(MilepostError):
    """The running instance went away while it was being asked."""

    code = "connection_lost"
    kind = ErrorKind.UNAVAILABLE


def code_of(error: MilepostError) -> str:
    """The stable code, wherever the failure happened."""
    return error.remote_code if isinstance(error, RemoteFailure) else error.code


def exit_of(error: MilepostError) -> Exit:
    """The exit code of a failure."""
    return EXIT_BY_KIND[error.remote_kind if isinstance(error, RemoteFailure) else error.kind]


def as_json(error: MilepostError) -> dict[str, Any]:
    """What `--json` prints on standard error."""
    body = {
        "code": code_of(error),
        "message": error.message,
        "field": error.field,
        "fix": error.fix,
        "exit_code": int(exit_of(error)),
    }
    return {"error": {key: value for key, value in body.items() if value is not None}}


def kind_of_problem(code: str, status: int) -> ErrorKind:
    """The kind behind a problem the API reported: by its code, else by its HTTP status."""
    classes = [MilepostError]
    while classes:
        cls = classes.pop()
        if cls.code == code and cls is not MilepostError:
            return cls.kind
        classes.extend(cls.__subclasses__())
    by_status = {401: ErrorKind.FORBIDDEN, 403: ErrorKind.FORBIDDEN, 404: ErrorKind.NOT_FOUND, 409: ErrorKind.CONFLICT}
    by_status |= {413: ErrorKind.TOO_LARGE, 422: ErrorKind.INVALID, 400: ErrorKind.INVALID}
    by_status |= {429: ErrorKind.UNAVAILABLE, 502: ErrorKind.UNAVAILABLE, 503: ErrorKind.UNAVAILABLE}
    return by_status.get(status, ErrorKind.FAILED)
