"""A model's tool call as a checked operation."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from milepost.domain.errors import ArgumentsUnparsable, ToolRejected
from milepost.domain.tools import (
    BUILTIN_TOOL_POLICIES,
    MAX_TOOL_ARGUMENTS_BYTES,
    PROCESS_TOOLS,
    UNSANDBOXED_TOOLS,
    ToolDefinition,
)
from milepost.ports.sandbox import EditFile, Exec, Glob, Grep, ListDir, Operation, ReadFile, WriteFile
from milepost.security.schemas import validator
from milepost.tools.definitions import BASH_TIMEOUT_SECONDS, READ_LINES, definitions
from milepost.tools.git import GIT_ARGUMENT_BYTES, GIT_OPERATIONS
from milepost.tools.memory import MEMORY_ARGUMENT_BYTES
from milepost.tools.processes import PROCESS_ARGUMENT_BYTES, PROCESS_SECONDS, ProcessCall

MIB = 1024 * 1024
FILE_OPERATION_SECONDS = 60.0
INTERNAL_SECONDS = 60.0
LIST_ENTRIES = 2000
GREP_MATCHES = 500
GLOB_MATCHES = 2000

MAX_BYTES = {
    ("write_file", "content"): 8 * MIB,
    ("edit_file", "old"): MIB,
    ("edit_file", "new"): 8 * MIB,
    ("bash", "command"): MIB,
    ("grep", "pattern"): 16 * 1024,
    ("grep", "glob"): 4 * 1024,
    ("glob", "pattern"): 16 * 1024,
    ("read_output", "ref"): 64,
    ("search_output", "ref"): 64,
    ("read_attachment", "name"): 4 * 1024,
    ("search_output", "query"): 1024,
    **GIT_ARGUMENT_BYTES,
    **MEMORY_ARGUMENT_BYTES,
    **PROCESS_ARGUMENT_BYTES,
}
"""Largest accepted size of an argument, in UTF-8 bytes."""

MAX_PATH_BYTES = 4 * 1024

MAX_NESTING = 100
"""Arrays and objects within one another. What is checked, copied and handed on recursively has its end far below."""


@dataclass(frozen=True, slots=True)
class PlannedTool:
    """A call that may run. `timeout` is seconds; `repaired` tells that double-encoded arguments were decoded."""

    operation: Operation
    timeout: float
    repaired: bool


@dataclass(frozen=True, slots=True)
class PlannedCustom:
    """A call of a tool of the user's own that may run; otherwise as `PlannedTool`."""

    arguments: dict[str, Any]
    timeout: float
    repaired: bool


@dataclass(frozen=True, slots=True)
class PlannedInternal:
    """A call of a built-in tool that needs no sandbox; otherwise as `PlannedTool`."""

    arguments: dict[str, Any]
    timeout: float
    repaired: bool


@dataclass(frozen=True, slots=True)
class PlannedProcess:
    """A call of a tool for terminals and background commands; otherwise as `PlannedTool`."""

    call: ProcessCall
    timeout: float
    repaired: bool

    @property
    def arguments(self) -> dict[str, Any]:
        return self.call.arguments


Planned = PlannedTool | PlannedProcess | PlannedCustom | PlannedInternal


def plan_custom(
    definition: ToolDefinition, arguments_json: str, timeout: float, *, defaults: bool = False
) -> PlannedCustom:
    """Check the arguments of a tool of the user's own against its schema. Raises ToolRejected as `plan` does.

    `defaults`: what is left out gets the default that the schema gives it.
    """
    tool = definition.name
    arguments, repaired = _parse(tool, arguments_json)
    if defaults:
        properties: dict[str, Any] = definition.parameters["properties"]
        given = {name: schema["default"] for name, schema in properties.items() if "default" in schema}
        arguments = {**given, **arguments}
    try:
        error = best_match(validator(definition.parameters).iter_errors(arguments))
    except RecursionError:
        _reject(tool, "the arguments are nested too deeply")
    if error is not None:
        _reject(tool, _explain(error))
    try:
        json.dumps(arguments, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        _reject(tool, "an argument contains half of a surrogate pair, which is no text")
    return PlannedCustom(arguments, timeout, repaired)


def plan(tool: str, arguments_json: str) -> PlannedTool | PlannedProcess | PlannedInternal:
    """Check the arguments of a built-in tool strictly and map them to an operation if it runs in the sandbox.

    Raises ToolRejected: unknown tool, arguments that do not parse or do not fit. Its text is meant for the model.
    """
    if tool not in BUILTIN_TOOL_POLICIES:
        raise ToolRejected(f"There is no tool {tool[:100]!r}. Tools: {', '.join(BUILTIN_TOOL_POLICIES)}.")
    arguments, repaired = _parse(tool, arguments_json)
    error = best_match(_validator(tool).iter_errors(arguments))
    if error is not None:
        _reject(tool, _explain(error))
    for field, value in arguments.items():
        if isinstance(value, str):
            _check_text(tool, field, value)
    if tool in UNSANDBOXED_TOOLS:
        return PlannedInternal(arguments, INTERNAL_SECONDS, repaired)
    if tool in PROCESS_TOOLS:
        return PlannedProcess(ProcessCall(tool, arguments), PROCESS_SECONDS, repaired)
    operation = _OPERATIONS[tool](arguments)
    timeout = operation.timeout if isinstance(operation, Exec) else FILE_OPERATION_SECONDS
    return PlannedTool(operation, timeout, repaired)


def _parse(tool: str, text: str) -> tuple[dict[str, Any], bool]:
    """Arguments as an object. One repair is made: an object that was encoded twice is decoded twice."""
    if len(text) > MAX_TOOL_ARGUMENTS_BYTES:
        _reject(tool, f"the arguments are over {MAX_TOOL_ARGUMENTS_BYTES} bytes; write large data in parts")
    if not text.strip():
        return {}, False
    value = _decode(tool, text)
    if isinstance(value, dict):
        _check_nesting(tool, text, value)
        return value, False
    if isinstance(value, str):
        inner = _decode(tool, value)
        _check_nesting(tool, value, inner)
        if isinstance(inner, dict):
            return inner, True
    return _reject(tool, f"the arguments must be a JSON object, not {_kind(value)}")


def _decode(tool: str, text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        _reject(tool, "the arguments are nested too deeply")
    except ValueError as error:
        raise ArgumentsUnparsable(
            f"{tool} was not run: the arguments are not valid JSON ({error}); send one complete JSON object."
        ) from None


def _check_nesting(tool: str, text: str, value: Any) -> None:
    if text.count("{") + text.count("[") <= MAX_NESTING:
        return
    level = [value]
    for _ in range(MAX_NESTING):
        children = (item for each in level for item in (each.values() if isinstance(each, dict) else each))
        level = [item for item in children if isinstance(item, dict | list)]
        if not level:
            return
    _reject(tool, f"the arguments are nested too deeply; at most {MAX_NESTING} levels are accepted")


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


@functools.cache
def _validator(tool: str) -> Draft202012Validator:
    return Draft202012Validator(definitions([tool])[0].parameters)


def _explain(error: ValidationError) -> str:
    """The library's message without the instance, which may be megabytes."""
    field = ".".join(str(part) for part in error.absolute_path) or "the arguments"
    schema = cast("dict[str, Any]", error.schema)
    given = cast("dict[str, Any]", error.instance)
    known = ", ".join(schema.get("properties", {}))
    match error.validator:
        case "required":
            missing = [name for name in schema["required"] if name not in given]
            return f"'{missing[0]}' is missing; the arguments are {known}"
        case "additionalProperties":
            extra = sorted(set(given) - set(schema.get("properties", {})))
            if extra and not schema.get("patternProperties"):
                return f"'{extra[0][:100]}' is no argument; the arguments are {known or 'none'}"
            return f"{field} has an argument that is not accepted"
        case "type":
            return f"'{field}' must be of type {error.validator_value}, not {_kind(error.instance)}"
        case "enum":
            return f"'{field}' must be one of {json.dumps(error.validator_value, ensure_ascii=False)[:500]}"
        case "pattern" if field == "id":
            return "'id' must be one that bash_background, spawn_terminal or list_terminals gives, like 'prc_0a1b...'"
        case "minLength" if error.validator_value == 1:
            return f"'{field}' must not be empty"
        case "pattern" if field == "ref":
            return "'ref' must be three numbers with dots between, like '12.3.1', as a result or search_output names it"
        case "minimum" | "maximum":
            return f"'{field}' is {error.instance}; the {error.validator} is {error.validator_value}"
        case _:
            wanted = json.dumps(error.validator_value, default=str)
            return f"'{field}' is not valid ({error.validator} {wanted[:200]})"


def _check_text(tool: str, field: str, value: str) -> None:
    limit = MAX_PATH_BYTES if field == "path" else MAX_BYTES[(tool, field)]
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        _reject(tool, f"'{field}' contains half of a surrogate pair, which is no text")
    if size > limit:
        _reject(tool, f"'{field}' has {size} bytes; at most {limit} bytes are accepted")
    if "\0" in value and (tool, field) not in (("write_file", "content"), ("write_terminal", "text")):
        _reject(tool, f"'{field}' contains a NUL character")


def _reject(tool: str, reason: str) -> NoReturn:
    raise ToolRejected(f"{tool} was not run: {reason[:2000]}.")


_OPERATIONS: dict[str, Callable[[dict[str, Any]], Operation]] = {
    "read_file": lambda a: ReadFile(
        a["path"], offset=int(a.get("offset", 1)) - 1, limit=int(a.get("limit", READ_LINES)), unit="lines"
    ),
    "write_file": lambda a: WriteFile(a["path"], a["content"].encode("utf-8")),
    "edit_file": lambda a: EditFile(a["path"], a["old"], a["new"], bool(a.get("all", False))),
    "list_dir": lambda a: ListDir(a.get("path", "."), LIST_ENTRIES),
    "grep": lambda a: Grep(a["pattern"], a.get("path", "."), a.get("glob"), GREP_MATCHES),
    "glob": lambda a: Glob(a["pattern"], a.get("path", "."), GLOB_MATCHES),
    "bash": lambda a: Exec(a["command"], timeout=float(a.get("timeout", BASH_TIMEOUT_SECONDS)), keep_cwd=True),
    **GIT_OPERATIONS,
}
