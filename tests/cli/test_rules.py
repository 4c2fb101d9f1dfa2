"""What holds for every command: help, documentation, JSON, exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from cli.failures import EXIT_BY_KIND, Exit, RemoteFailure, as_json, exit_of, kind_of_problem
from cli.main import commands
from milepost.domain.errors import ErrorKind, MilepostError

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def _leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, item in group.commands.items():
        if hasattr(item, "commands"):
            yield from _leaves(item, (*path, name))
        else:
            yield (*path, name), item


LEAVES = dict(_leaves(get_command(commands)))


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_explains_itself_and_is_documented(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(commands, [*path, "--help"])
    assert result.exit_code == 0, result.output
    assert LEAVES[path].help
    assert "--json" in result.output
    assert "--config" in result.output
    section = re.search(rf"^### `milepost {' '.join(path)}`\n(.*?)(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert section, f"docs/cli.md has no section for `milepost {' '.join(path)}`"
    for parameter in LEAVES[path].params:
        if parameter.name not in ("json_output", "config_file"):
            option = parameter.opts[0].startswith("-")
            shown = (parameter.metavar or parameter.name.upper()).strip("[].")
            assert (max(parameter.opts, key=len) if option else shown) in section[1]


def test_no_command_is_documented_that_does_not_exist() -> None:
    documented = re.findall(r"^### `milepost ([a-z -]+)`$", DOCUMENT, re.MULTILINE)
    assert sorted(documented) == sorted(" ".join(path) for path in LEAVES)


def test_every_exit_code_is_documented_and_every_kind_has_one() -> None:
    assert set(EXIT_BY_KIND) == set(ErrorKind)
    rows = dict(re.findall(r"^\| `(\d+)` \| (.+) \|$", DOCUMENT, re.MULTILINE))
    assert {int(code) for code in rows} == {int(code) for code in Exit}


def test_a_usage_error_is_a_two() -> None:
    runner = CliRunner()
    assert runner.invoke(commands, ["run"]).exit_code == 2
    assert runner.invoke(commands, ["session", "list", "--limit", "0"]).exit_code == 2
    assert runner.invoke(commands, ["nothing"]).exit_code == 2


def _all_errors(cls: type[MilepostError] = MilepostError) -> Iterator[type[MilepostError]]:
    for sub in cls.__subclasses__():
        if sub.__module__.startswith("milepost.domain"):
            yield sub
        yield from _all_errors(sub)


@pytest.mark.parametrize("cls", sorted(set(_all_errors()), key=lambda cls: cls.__name__))
def test_a_failure_has_the_same_exit_code_wherever_it_happens(cls: type[MilepostError]) -> None:
    """A remote failure is told from a local one by nothing but the way it came."""
    remote = RemoteFailure("No.", code=cls.code, kind=kind_of_problem(cls.code, 500), fix="Do it.")
    assert exit_of(remote) is EXIT_BY_KIND[cls.kind]
    body = as_json(remote)["error"]
    assert body == {"code": cls.code, "message": "No.", "fix": "Do it.", "exit_code": int(EXIT_BY_KIND[cls.kind])}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, ErrorKind.FORBIDDEN), (404, ErrorKind.NOT_FOUND), (422, ErrorKind.INVALID), (503, ErrorKind.UNAVAILABLE)],
)
def test_an_unknown_code_is_judged_by_its_status(status: int, kind: ErrorKind) -> None:
    assert kind_of_problem("of_a_later_release", status) is kind
