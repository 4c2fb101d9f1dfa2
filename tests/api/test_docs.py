"""docs/http.md names what is served, all of it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from milepost.domain.errors import MilepostError
from tests.api.stack import Stack

DOCUMENT = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")
API_CODES = {
    "host_not_allowed",
    "internal",
    "malformed_json",
    "malformed_request",
    "method_not_allowed",
    "not_found",
    "origin_not_allowed",
    "stopping",
    "too_many_attempts",
    "unauthorized",
}


def _section(title: str) -> str:
    return DOCUMENT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


async def test_every_route_is_named(stack: Stack) -> None:
    served = {
        f"{method.upper()} {re.sub('{[a-z_]+}', '{id}', path)}"
        for path, methods in stack.app.openapi()["paths"].items()
        for method in methods
    }
    named = set(re.findall(r"^\| `([A-Z]+ /[^`]*)`", _section("Routes"), re.MULTILINE))
    sockets = {"GET /api/v1/ws", "GET /api/v1/sessions/{id}/terminals/{id}/ws"}
    assert named == served | sockets


def _codes(cls: type[MilepostError] = MilepostError) -> set[str]:
    return {cls.code}.union(*(_codes(sub) for sub in cls.__subclasses__()))


def test_every_code_exists() -> None:
    rows = re.findall(r"^\| (\d{3}) \| (.*) \|$", _section("Errors"), re.MULTILINE)
    named = {code for _, codes in rows for code in re.findall(r"`([a-z_]+)`", codes)}
    assert len(rows) >= 10
    assert named <= _codes() | API_CODES
    assert named >= API_CODES


async def test_the_turn_in_the_document_is_a_turn(stack: Stack) -> None:
    turn = await stack.begin(await stack.open_session())
    block = _section("Routes").split("### A turn", 1)[1].split("```", 2)[1]
    assert set(re.findall(r'"([a-z_]+)":', block)) == {
        *turn,
        *turn["usage"],
        *turn["usage"]["cost"],
        *turn["links"],
    } - {"created"}
