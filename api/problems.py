"""Errors as `application/problem+json` (RFC 9457). The one place where an error becomes an HTTP status."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.responses import json_bytes
from milepost.domain.errors import ErrorKind, MilepostError, ModelError, TurnRunning
from milepost.observability.logging import get_logger
from milepost.security.access import Refusal

PROBLEM_JSON = "application/problem+json"
MAX_REPORTED_ERRORS = 20
MAX_LOGGED_FRAMES = 40
STATUS_BY_KIND: dict[ErrorKind, int] = {
    ErrorKind.INVALID: 422,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.CONFLICT: 409,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.NEEDS_PERSON: 409,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.STORAGE: 503,
    ErrorKind.FAILED: 500,
}
_CODE_BY_STATUS = {
    400: "malformed_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "timed_out",
    413: "payload_too_large",
}
_FIX_BY_STATUS = {
    404: "See /api/v1/openapi.json for all routes.",
    413: "Send less, or put the data in a file of the workspace and refer to it.",
}
_DETAIL_BY_STATUS = {404: "There is no such route.", 405: "The route does not have this method."}
_RETRY_SECONDS = 2

_log = get_logger(__name__)


def problem(status: int, code: str, detail: str, **extra: Any) -> dict[str, Any]:
    """The body of a problem; members that are None are left out."""
    body = {
        "type": f"urn:milepost:problem:{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "code": code,
    }
    return body | {key: value for key, value in extra.items() if value is not None}


def problem_of(error: MilepostError) -> dict[str, Any]:
    """An expected failure as a problem."""
    turn_id = error.turn_id if isinstance(error, TurnRunning) else None
    status = STATUS_BY_KIND[error.kind]
    return problem(status, error.code, error.message, field=error.field, fix=error.fix, turn_id=turn_id)


def unexpected(error: BaseException, **context: Any) -> dict[str, Any]:
    """An unexpected failure: logged with an id, told without internals."""
    error_id = f"err_{secrets.token_hex(8)}"
    # Formatted here: a renderer that shows local variables would show secrets, and take seconds.
    text = "".join(traceback.format_exception(error, limit=-MAX_LOGGED_FRAMES))
    _log.error("api.unexpected", error_id=error_id, exception=text, **context)
    return problem(
        500,
        "internal",
        "The request failed because of a fault in Milepost.",
        fix=f"Look for {error_id} in the log of the API, and report it.",
        error_id=error_id,
    )


def stopping() -> dict[str, Any]:
    """For a request that did not end before the server stopped."""
    return problem(
        503,
        "stopping",
        "The API stopped before the request was done; it may or may not have taken effect.",
        fix="Send it again with the same idempotency key.",
    )


def problem_response(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """A problem as a response."""
    return Response(json_bytes(body), body["status"], headers, PROBLEM_JSON)


def render_refusal(refusal: Refusal) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body for what the gate refuses."""
    response = refusal_response(refusal)
    return list(response.raw_headers), bytes(response.body)


def refusal_response(refusal: Refusal) -> Response:
    """What the gate or a login refuses, as a response."""
    headers: dict[str, str] = {}
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="milepost"'
    if refusal.retry_after is not None:
        headers["Retry-After"] = str(int(refusal.retry_after) + 1)
    return problem_response(problem(refusal.status, refusal.code, refusal.detail, fix=refusal.fix), headers)


def install(app: FastAPI) -> None:
    """Map every failure of a route to a problem."""
    app.add_exception_handler(MilepostError, _on_expected)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)


async def _on_expected(_: Request, error: Exception) -> Response:
    assert isinstance(error, MilepostError)  # noqa: S101
    headers: dict[str, str] = {}
    if error.retryable:
        after = error.retry_after if isinstance(error, ModelError) else None
        headers["Retry-After"] = str(int(after or _RETRY_SECONDS))
    return problem_response(problem_of(error), headers)


def http_problem(error: HTTPException) -> Response:
    """A failure of HTTP itself (no such route, body too long) as a response."""
    status = error.status_code
    detail = _DETAIL_BY_STATUS.get(status, error.detail)
    code = _CODE_BY_STATUS.get(status, "request_failed")
    return problem_response(problem(status, code, detail, fix=_FIX_BY_STATUS.get(status)), error.headers)


async def _on_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    return http_problem(error)


async def _on_validation(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    errors = error.errors()
    for item in errors:
        if item["type"] == "json_invalid":
            why = (item.get("ctx") or {}).get("error", "it does not parse")
            return problem_response(problem(400, "malformed_json", f"The body is no JSON: {why}."))
    return problem_response(invalid(errors))


def invalid(errors: Sequence[Any]) -> dict[str, Any]:
    """Findings of pydantic on a request (each location begins with the part of the request) as a problem."""
    return _invalid([(_field(item["loc"][1:] or item["loc"]), item) for item in errors])


def invalid_query(errors: Sequence[Any]) -> dict[str, Any]:
    """Findings of pydantic on values alone as a problem."""
    return _invalid([(_field(item["loc"]), item) for item in errors])


def _invalid(errors: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    found = [_described(field, item) for field, item in errors[:MAX_REPORTED_ERRORS]]
    first = found[0]
    return problem(422, "invalid_input", first["detail"], field=first["field"], fix=first["fix"], errors=found)


def _described(location: str, item: Mapping[str, Any]) -> dict[str, Any]:
    context = item.get("ctx") or {}
    field = str(context.get("key") or location)
    # pydantic's text says what is wrong with the value and never repeats it.
    return {"field": field, "detail": f"{field}: {item['msg']}.", "fix": context.get("fix")}


def _field(location: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in location)
