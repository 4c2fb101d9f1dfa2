"""What the OpenAPI document says beyond the routes: problems, credentials, the address of the document itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from api.problems import PROBLEM_JSON
from api.schemas.base import Problem

OPENAPI_PATH = "/api/v1/openapi.json"
IsOpen = Callable[[str, str], bool]
"""(method, path) -> whether it needs no credentials."""

_PROBLEMS = {
    400: "The request cannot be parsed.",
    401: "No valid credentials.",
    403: "The Host or Origin is not accepted.",
    404: "What the request names does not exist.",
    409: "The request conflicts with the present state; nothing was changed.",
    413: "The body is over the limit.",
    422: "A value cannot be accepted as given.",
    429: "Too many failed attempts.",
    500: "A fault in Milepost; the log has the error_id.",
    503: "The ledger or a part that is needed does not answer; try again later.",
}
_ALWAYS = (403, 500)
_WITH_TOKEN = (401, 503)
_TAGS = {
    "sessions": "A Session belongs to one folder and has turns.",
    "environments": "What a Session's sandbox is made of, who agreed to it, and how preparing it ended.",
    "git": "The repository in the sandbox: looked at, staged, committed, branched.",
    "terminals": "Terminals and background commands of the sandbox: opened, attached to, read, ended.",
    "turns": "One accepted request and its one terminal state.",
    "history": "What was asked, said, done and spent.",
    "agents": "Agents, and consolidations of their memory.",
    "checkpoints": "Cached conversations of this host.",
    "memory": "What agents keep in mind, their logs, what they can recall.",
    "rewinds": "Going back to a turn.",
    "search": "Finding texts again.",
    "long-term memory": "Records by namespace and key, across Sessions.",
    "exports": "Sessions as files, and back.",
    "attachments": "Files that a Session's turns refer to.",
    "approvals": "What waits for a person, what a person decided for calls to come, and how lost calls turned out.",
    "live": "Events and text as they come. The WebSocket at `/api/v1/ws?session=...&after=...` sends the same frames.",
    "skills": "Instructions that agents load when they need them.",
    "models": "What can be called with the configured keys.",
    "instance": "Health and what runs here.",
    "logins": "Cookies for browsers.",
}


def problems(*statuses: int, token: bool = True) -> dict[int | str, dict[str, Any]]:
    """The problem responses of an operation: the given statuses and those every operation can have."""
    chosen = sorted({*statuses, *_ALWAYS, *(_WITH_TOKEN if token else ())})
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": _PROBLEMS[status], "content": {PROBLEM_JSON: {"schema": schema}}} for status in chosen
    }


def operation_id(route: APIRoute) -> str:
    """The function's name."""
    return route.name


def install(app: FastAPI, *, is_open: IsOpen, cookie_name: str) -> None:
    """Publish the document with the problem shape and the ways to authenticate."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, is_open, cookie_name)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI, is_open: IsOpen, cookie_name: str) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        routes=app.routes,
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
    )
    components = schema.setdefault("components", {})
    shapes = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        shapes.pop(name, None)
    shapes["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "The instance's token."},
        "cookie": {"type": "apiKey", "in": "cookie", "name": cookie_name, "description": "Set by POST /api/v1/login."},
    }
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            # Path parameters are text, which no validation refuses; the framework adds a 422 for each.
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
            if not is_open(method.upper(), path):
                operation["security"] = [{"token": []}, {"cookie": []}]
    return schema
