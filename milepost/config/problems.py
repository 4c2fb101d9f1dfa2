"""Turning validation errors into sentences a person can act on: where, what, and the nearest known key."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from milepost.config.document import Document, Path_
from milepost.domain.errors import ConfigInvalid
from milepost.domain.suggestions import closest

MAX_PROBLEMS = 50


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault. `place` is the file or environment variable; line and column count from 1."""

    place: str
    key: str
    message: str
    fix: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        position = f", line {self.line}, column {self.column}" if self.line else ""
        return f"{self.place}{position}: '{self.key}' {self.message}"


class ConfigProblems(ConfigInvalid):
    """All faults of a configuration; the text is that of the first one."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0]
        more = f" ({len(problems) - 1} more: milepost config validate)" if len(problems) > 1 else ""
        super().__init__(f"{first}{more}", field=first.key, fix=first.fix)
        self.problems = tuple(problems[:MAX_PROBLEMS])


def nearest(word: str, known: Sequence[str]) -> str | None:
    """A fix that names the nearest known word, else all known ones."""
    close = closest(word, known)
    if close:
        return f"Did you mean '{close}'?"
    return f"Known: {', '.join(sorted(known))}." if known else None


def problem_at(
    path: Path_, message: str, fix: str | None, document: Document | None, env: Mapping[str, Any]
) -> Problem:
    """A fault at a key, with the place it was set: environment variable, or line and column of the file."""
    key = ".".join(str(part) for part in path)
    if _inside(env, path):
        variable = "MILEPOST_" + "__".join(str(part) for part in path).upper()
        return Problem(f"environment variable {variable}", key, message, fix)
    if document is None:
        return Problem("configuration", key, message, fix)
    for length in range(len(path), 0, -1):
        position = document.positions.get(path[:length])
        if position is not None:
            return Problem(str(document.path), key, message, fix, *position)
    return Problem(str(document.path), key, message, fix)


def problems_of(
    error: ValidationError, root: type[BaseModel], document: Document | None, env: Mapping[str, Any], data: Any
) -> list[Problem]:
    """One problem per validation error, in the order of the file."""
    found = []
    for item in error.errors(include_url=False)[:MAX_PROBLEMS]:
        path = _data_path(item["loc"], data)
        message, fix = _sentence(dict(item), root)
        found.append(problem_at(path, message, fix, document, env))
    return sorted(found, key=lambda problem: (problem.line or 0, problem.column or 0))


def _sentence(item: Mapping[str, Any], root: type[BaseModel]) -> tuple[str, str | None]:
    loc: tuple[str | int, ...] = item["loc"]
    match item["type"]:
        case "extra_forbidden":
            return "is no known key.", nearest(str(loc[-1]), _known_keys(root, loc[:-1]))
        case "missing":
            return "is missing.", None
        case "value_error":
            return f"cannot be used: {item['ctx']['error']}", None
        case "literal_error" | "enum":
            wanted = item["ctx"]["expected"]
            options = [option.strip("' ") for option in wanted.replace(" or ", ", ").split(",")]
            return f"must be {wanted}.", nearest(str(item["input"]), options)
        case "union_tag_not_found":
            return "needs a 'type'.", f"Known: {item['ctx'].get('discriminator')} is one of {_tags(root, loc)}."
        case "union_tag_invalid":
            tags = [tag.strip("' ") for tag in item["ctx"]["expected_tags"].split(",")]
            return "has an unknown 'type'.", nearest(item["ctx"]["tag"], tags)
        case _:
            text = item["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
            return f"should be {text}." if item["msg"].startswith(
                "Input should be "
            ) else f"cannot be used: {text}.", None


def _data_path(loc: tuple[str | int, ...], data: Any) -> Path_:
    """The error's location without the union tags and key marks that only the validator knows."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        try:
            data = data[part]
        except (LookupError, TypeError):
            # Only the last part may be absent from the data: a key that is missing.
            if index < len(loc) - 1 or part == "[key]":
                continue
        path.append(part)
    return tuple(path)


def _inside(env: Mapping[str, Any], path: Path_) -> bool:
    value: Any = env
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return bool(path)


def _known_keys(root: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    annotation: Any = root
    for part in loc:
        annotation = _descend(annotation, part)
    return [name for member in _members(annotation) if _is_model(member) for name in member.model_fields]


def _tags(root: type[BaseModel], loc: tuple[str | int, ...]) -> str:
    annotation: Any = root
    for part in loc:
        annotation = _descend(annotation, part)
    names = [_tag(member) for member in _members(annotation)]
    return ", ".join(name for name in names if name)


def _descend(annotation: Any, part: str | int) -> Any:
    for member in _members(annotation):
        if _is_model(member):
            if _tag(member) == part:
                return member
            if part in member.model_fields:
                return member.model_fields[str(part)].annotation
        elif get_origin(member) in (dict, tuple):
            args = get_args(member)
            return args[1] if get_origin(member) is dict else args[0]
    return annotation


def _members(annotation: Any) -> tuple[Any, ...]:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for arg in get_args(annotation) for member in _members(arg))
    return (annotation,)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _tag(model: Any) -> str | None:
    field = model.model_fields.get("type") if _is_model(model) else None
    if field is None or get_origin(field.annotation) is not Literal:
        return None
    return str(get_args(field.annotation)[0])
