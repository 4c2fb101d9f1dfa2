"""The published description: complete, and true to what is served."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute

from api.problems import PROBLEM_JSON, STATUS_BY_KIND, problem_of, unexpected
from api.schemas.base import Problem
from milepost.domain.errors import ErrorKind, MilepostError, TurnRunning
from tests.api.stack import Stack


def _operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, item) for path, methods in schema["paths"].items() for method, item in methods.items()]


async def test_every_operation_is_described(stack: Stack) -> None:
    schema = (await stack.client.get("/api/v1/openapi.json")).json()
    assert schema["openapi"].startswith("3.1")
    operations = _operations(schema)
    assert len(operations) >= 23
    ids = [operation["operationId"] for _, _, operation in operations]
    assert len(set(ids)) == len(ids)
    tags = {tag["name"] for tag in schema["tags"]}
    for path, method, operation in operations:
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        assert set(operation["tags"]) <= tags, where
        problems = {
            status: answer for status, answer in operation["responses"].items() if status.startswith(("4", "5"))
        }
        assert {"403", "500"} <= set(problems), where
        assert ("401" in problems) is ("security" in operation or path == "/api/v1/login"), where
        if "{" in path:
            assert "404" in problems, where
        if "requestBody" in operation:
            assert {"400", "413", "422"} <= set(problems), where
        for status, answer in problems.items():
            if (path, status) != ("/health/ready", "503"):
                assert list(answer["content"]) == [PROBLEM_JSON], where
                assert answer["content"][PROBLEM_JSON]["schema"] == {"$ref": "#/components/schemas/Problem"}
    text = str(schema)
    assert "HTTPValidationError" not in text
    for name, shape in schema["components"]["schemas"].items():
        assert f"#/components/schemas/{name}" in text, f"{name} is not used"
        if shape.get("type") == "object":
            assert shape.get("additionalProperties") is False, name


async def test_every_route_is_published(stack: Stack) -> None:
    published = {(path, method.upper()) for path, method, _ in _operations(stack.app.openapi())}
    for route in stack.app.routes:
        for effective in getattr(route, "routes", [route]):
            if isinstance(effective, APIRoute) and effective.include_in_schema:
                for method in effective.methods or ():
                    assert (effective.path, method) in published


def test_every_kind_of_error_has_a_status() -> None:
    assert set(STATUS_BY_KIND) == set(ErrorKind)


def _all_errors(cls: type[MilepostError] = MilepostError) -> list[type[MilepostError]]:
    """The domain's errors. What other tests have imported by now (the CLI's own errors) never reaches the API."""
    below = (found for sub in cls.__subclasses__() for found in _all_errors(sub))
    return [*([cls] if cls.__module__ == MilepostError.__module__ else []), *below]


@pytest.mark.parametrize("cls", _all_errors(), ids=lambda cls: cls.__name__)
def test_every_error_is_a_problem(cls: type[MilepostError]) -> None:
    more = {"turn_id": "trn_1"} if issubclass(cls, TurnRunning) else {}
    error = cls("It went wrong.", **more)
    error.field, error.fix = "f", "Repair it."
    shape = Problem.model_validate(problem_of(error))
    assert (shape.code, shape.detail, shape.field, shape.fix) == (cls.code, "It went wrong.", "f", "Repair it.")
    assert shape.turn_id == more.get("turn_id")
    assert 400 <= shape.status <= 599


def test_a_fault_is_a_problem() -> None:
    shape = Problem.model_validate(unexpected(RuntimeError("hidden")))
    assert shape.status == 500
    assert shape.error_id is not None
    assert "hidden" not in shape.model_dump_json()
