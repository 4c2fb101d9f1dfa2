"""The built-in tools: what is offered, which calls are accepted, what the model reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from milepost.domain.errors import InvalidInput, ToolRejected
from milepost.domain.tools import BUILTIN_TOOL_POLICIES, MAX_ERROR_TEXT_BYTES
from milepost.ports.sandbox import EditFile, Exec, Glob, Grep, ListDir, Operation, Outcome, ReadFile, WriteFile
from milepost.services.longterm.tools import POLICIES as LONG_TERM_POLICIES
from milepost.tools import definitions, plan, render

MIB = 1024 * 1024


# --- definitions ------------------------------------------------------------------------------------------------


def test_definitions_cover_the_table_in_one_order_whatever_is_asked() -> None:
    assert {tool.name for tool in definitions()} == set(BUILTIN_TOOL_POLICIES)
    assert definitions(["bash", "read_file"]) == definitions({"read_file", "bash"})
    assert [tool.name for tool in definitions(["bash", "read_file"])] == ["read_file", "bash"]
    with pytest.raises(InvalidInput, match="no_tool"):
        definitions(["no_tool"])


@pytest.mark.parametrize("tool", definitions(), ids=lambda tool: tool.name)
def test_parameters_are_valid_and_closed_schemas(tool: Any) -> None:
    Draft202012Validator.check_schema(tool.parameters)
    assert tool.parameters["additionalProperties"] is False
    assert len(tool.description) > 40


# --- planning ---------------------------------------------------------------------------------------------------

ACCEPTED: list[tuple[str, dict[str, Any], Operation]] = [
    ("read_file", {"path": "a"}, ReadFile("a", 0, 2000, "lines")),
    ("read_file", {"path": "a", "offset": 11, "limit": 5}, ReadFile("a", 10, 5, "lines")),
    ("write_file", {"path": "a", "content": "ü\0"}, WriteFile("a", "ü\0".encode())),
    ("edit_file", {"path": "a", "old": "x", "new": ""}, EditFile("a", "x", "", False)),
    ("edit_file", {"path": "a", "old": "x", "new": "y", "all": True}, EditFile("a", "x", "y", True)),
    ("list_dir", {}, ListDir(".", 2000)),
    ("list_dir", {"path": "src"}, ListDir("src", 2000)),
    ("grep", {"pattern": "a.b"}, Grep("a.b", ".", None, 500)),
    ("grep", {"pattern": "a", "path": "p", "glob": "*.py"}, Grep("a", "p", "*.py", 500)),
    ("glob", {"pattern": "**/*"}, Glob("**/*", ".", 2000)),
    ("bash", {"command": "ls"}, Exec("ls", ".", 180.0, keep_cwd=True)),
    ("bash", {"command": "ls", "timeout": 3600}, Exec("ls", ".", 3600.0, keep_cwd=True)),
]


@pytest.mark.parametrize(("tool", "arguments", "operation"), ACCEPTED)
def test_arguments_become_operations(tool: str, arguments: dict[str, Any], operation: Operation) -> None:
    planned = plan(tool, json.dumps(arguments))
    assert planned.operation == operation
    assert planned.timeout == (operation.timeout if isinstance(operation, Exec) else 60.0)
    assert not planned.repaired


REJECTED: list[tuple[str, str, str]] = [
    ("nothing", "{}", "read_file"),
    ("bash", "{", "not valid JSON"),
    ("bash", '{"command": "ls"', "not valid JSON"),
    ("bash", "[]", "an array"),
    ("bash", "null", "null"),
    ("bash", '"text"', "not valid JSON"),
    ("bash", '"[1]"', "must be a JSON object"),
    ("bash", "", "'command' is missing"),
    ("bash", "{}", "'command' is missing"),
    ("bash", '{"cmd": "ls"}', "command"),
    ("bash", '{"command": ["ls"]}', "of type string, not an array"),
    ("bash", '{"command": ""}', "must not be empty"),
    ("bash", '{"command": "ls", "timeout": 0}', "minimum is 1"),
    ("bash", '{"command": "ls", "timeout": 3601}', "maximum is 3600"),
    ("bash", '{"command": "ls", "timeout": 1.5}', "of type integer"),
    ("bash", '{"command": "ls", "cwd": "/"}', "'cwd' is no argument"),
    ("bash", '{"command": "a\\u0000b"}', "NUL"),
    ("bash", '{"command": NaN}', "not valid JSON"),
    ("read_file", '{"path": "\\ud800"}', "surrogate"),
    ("read_file", '{"path": "a", "offset": 0}', "minimum is 1"),
    ("read_file", json.dumps({"path": "a" * 4097}), "at most 4096"),
    ("write_file", json.dumps({"path": "a", "content": "x" * (8 * MIB + 1)}), "at most 8388608"),
    ("edit_file", json.dumps({"path": "a", "old": "x" * (MIB + 1), "new": ""}), "at most 1048576"),
    ("grep", json.dumps({"pattern": "x" * (16 * 1024 + 1)}), "at most 16384"),
    ("bash", json.dumps({"command": "x" * (16 * MIB)}), "16777216"),
    ("bash", "[" * 100_000, "not"),
]


@pytest.mark.parametrize(("tool", "arguments", "says"), REJECTED, ids=range(len(REJECTED)))
def test_rejections_tell_the_model_what_to_change(tool: str, arguments: str, says: str) -> None:
    with pytest.raises(ToolRejected) as caught:
        plan(tool, arguments)
    assert says in str(caught.value)
    assert len(str(caught.value).encode()) < MAX_ERROR_TEXT_BYTES


def test_double_encoded_arguments_are_repaired_once_and_that_is_recorded() -> None:
    once = json.dumps(json.dumps({"command": "ls"}))
    planned = plan("bash", once)
    assert (planned.operation, planned.repaired) == (Exec("ls", ".", 180.0, keep_cwd=True), True)
    with pytest.raises(ToolRejected):
        plan("bash", json.dumps(once))


@given(st.sampled_from(sorted(BUILTIN_TOOL_POLICIES)), st.text())
def test_any_text_is_an_operation_or_a_rejection(tool: str, text: str) -> None:
    try:
        plan(tool, text)
    except ToolRejected as error:
        assert str(error)


# --- rendering --------------------------------------------------------------------------------------------------


def bash(**outcome: Any) -> Any:
    return render("bash", Exec("x", timeout=5), Outcome(**{"exit_code": 0, **outcome}))


def test_a_command_shows_both_streams_and_its_end() -> None:
    output = bash(exit_code=2, stdout=b"out\n", stderr=b"err\n", detail={"stdout_bytes": 4})
    assert output.text == "out\n[stderr]\nerr\n[exit code 2]"
    assert output.is_error
    assert output.full_text is None
    assert output.detail == {"stdout_bytes": 4, "exit_code": 2}


def test_success_is_quiet() -> None:
    assert (bash(stdout=b"out\n").text, bash(stdout=b"out\n").is_error) == ("out", False)
    assert bash().text == "[no output, exit code 0]"


def test_timeouts_stops_and_leftovers_are_told() -> None:
    timed_out = bash(exit_code=124, timed_out=True, stdout=b"part")
    assert "part\n[timed out after 5 seconds" in timed_out.text
    assert timed_out.is_error
    stopped = bash(exit_code=None, killed=True)
    assert "stopped" in stopped.text
    assert stopped.is_error
    assert "2 background processes" in bash(detail={"leftover_processes": 2}).text


def test_long_output_keeps_beginning_and_end_within_32_kib_each() -> None:
    data = b"".join(b"line %d\n" % number for number in range(100_000))
    output = bash(stdout=data, stderr=data)
    assert output.text.startswith("line 0\n")
    assert "line 99999\n[stderr]\nline 0\n" in output.text
    assert output.text.endswith("line 99999")
    assert output.text.count("bytes left out") == 2
    assert len(output.text.encode()) <= 64 * 1024
    assert output.full_text == data.decode() + "\n[stderr]\n" + data.decode()


def test_cuts_do_not_split_characters() -> None:
    output = bash(stdout="→".encode() * 50_000)
    assert "�" not in output.text
    assert len(output.text.encode()) <= 33 * 1024


def test_terminal_control_is_taken_out() -> None:
    data = b"\x1b[31mred\x1b[0m \x1b]0;title\x07text\n 10%\r 50%\r100%\ndone\r\n"
    assert bash(stdout=data).text == "red text\n100%\ndone"


@pytest.mark.parametrize("piece", [b"x", b"\r", b"\x1b", b"\x1b[", b"\x1b]0;", b"\xff", b"\n", b"a\rb"])
@pytest.mark.timeout(20)
def test_the_largest_output_costs_little_whatever_it_holds(piece: bytes) -> None:
    """Sixteen MiB of anything; a pattern that scans ahead at each byte would take hours."""
    data = (piece * (17 * MIB // len(piece)))[: 16 * MIB]
    output = bash(stdout=data, stderr=data)
    assert len(output.text.encode("utf-8", "replace")) <= 64 * 1024


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert bash(stdout=b"\xff\x00ok").text == "�\x00ok"


def test_an_error_outcome_is_its_sentence() -> None:
    output = render("edit_file", EditFile("f", "a", "b"), Outcome(error_code="no_match", error="It does not occur."))
    assert (output.text, output.is_error, output.detail) == ("It does not occur.", True, {"error_code": "no_match"})


def read(data: bytes, offset: int = 0, **detail: int) -> Any:
    return render("read_file", ReadFile("f", offset, 2000, "lines"), Outcome(stdout=data, detail=detail))


def test_reading_shows_the_exact_text_and_how_to_go_on() -> None:
    whole = read(b"a\nb\n", size=4, first_line=1, lines=2, total_lines=2, end=1)
    assert whole.text == "a\nb\n"
    page = read(b"a\nb\n", size=40, first_line=1, lines=2, total_lines=20, end=0)
    assert page.text == "a\nb\n[lines 1-2 of 20; read on with offset=3]"
    end = read(b"y\nz\n", 18, size=40, first_line=19, lines=2, total_lines=20, end=1)
    assert end.text == "y\nz\n[lines 19-20 of 20; this is the end]"


def test_a_page_over_64_kib_is_cut_at_a_line() -> None:
    data = (b"x" * 999 + b"\n") * 200
    output = read(data, size=200_000, first_line=1, lines=200, total_lines=200, end=1)
    assert len(output.text.encode()) <= 64 * 1024
    shown = output.detail["shown_lines"]
    assert output.text.endswith(f"[lines 1-{shown} of 200; read on with offset={shown + 1}]")
    assert output.text.count("x" * 999) == shown


def test_one_endless_line_is_cut_and_said() -> None:
    output = read(b"x" * 200_000, size=200_000, first_line=1, lines=1, total_lines=1, end=1)
    assert "line 1 is longer" in output.text
    assert len(output.text.encode()) <= 64 * 1024


def test_empty_binary_and_missing_lines_are_told() -> None:
    assert read(b"", size=0, first_line=1, lines=0, total_lines=0, end=1).text == "[the file is empty]"
    assert "no line 10" in read(b"", 9, size=4, first_line=1, lines=0, total_lines=2, end=1).text
    binary = read(b"\x7fELF\0", size=5000)
    assert "binary file of 5000 bytes" in binary.text
    assert binary.detail["binary"]


def test_listing_and_matches_are_bounded_with_advice() -> None:
    rows = [{"name": "d", "kind": "dir", "size": 0}, {"name": "a\nb\udcff", "kind": "file", "size": 3}]
    rows.append({"name": "l", "kind": "link", "size": 0, "target": "d"})
    stdout = "\n".join(map(json.dumps, rows)).encode()
    output = render("list_dir", ListDir(), Outcome(stdout=stdout, detail={"entries": 5, "shown": 3}))
    assert output.text.splitlines()[:3] == ["d/", "a\\nb\\xff (3 bytes)", "l -> d"]
    assert "2 more entries" in output.text
    many = "\n".join(f"src/file{number}.py:1:{'x' * 100}" for number in range(2000)).encode()
    cut = render("grep", Grep("x"), Outcome(stdout=many, detail={"cut": 1}))
    assert len(cut.text.encode()) <= 64 * 1024
    assert "narrow the pattern" in cut.text
    assert cut.full_text == many.decode()
    assert render("grep", Grep("x"), Outcome()).text == "No matches."
    assert render("glob", Glob("x"), Outcome()).text == "No files match."


def test_writes_and_edits_say_what_they_did() -> None:
    wrote = render("write_file", WriteFile("a", b""), Outcome(detail={"bytes": 5, "created": 1}))
    assert wrote.text == "Created a (5 bytes)."
    edited = render("edit_file", EditFile("a", "x", "y"), Outcome(detail={"replacements": 1, "line": 7}))
    assert edited.text == "Edited a (line 7)."


def test_the_documentation_states_the_table_and_the_limits() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    documented = {row[0].strip("`"): (row[2], row[3], row[4]) for row in rows if len(row) == 5}
    policies = {**BUILTIN_TOOL_POLICIES, **LONG_TERM_POLICIES}.items()
    assert documented == {name: (p.effect_class, p.parallel, p.approval) for name, p in policies}
    for tool in definitions():
        row = next(row for row in rows if row[0] == f"`{tool.name}`")
        assert set(re.findall(r"`(\w+)`", row[1])) == set(tool.parameters["properties"])
