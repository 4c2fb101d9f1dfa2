"""Reading a YAML file as plain values with the position of each key. YAML 1.2: `on` and `no` are words."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from milepost.domain.errors import ConfigInvalid

MAX_FILE_BYTES = 1024 * 1024
MAX_NODES = 50_000
MAX_INTEGER = 2**63 - 1

Path_ = tuple[str | int, ...]

Fault = tuple[Path_, str, str | None]
"""Path of the key, what is wrong, what to do."""
Position = tuple[int, int]


@dataclass(slots=True)
class Document:
    """`positions` maps the path of a key to its line and column, both counted from 1."""

    path: Path
    data: dict[str, Any] = field(default_factory=dict)
    positions: dict[Path_, Position] = field(default_factory=dict)
    nodes: int = 0


def read_document(path: Path) -> Document:
    """Read a mapping. An empty file is an empty mapping.

    Raises:
        ConfigInvalid: the file cannot be read, is no YAML mapping (with line and column), or is over a bound.
    """
    document = Document(path)
    root = _parse(path, _text(path))
    if root is None:
        return document
    if not isinstance(root, CommentedMap):
        raise ConfigInvalid(f"{path}: the file must hold a mapping (KEY: VALUE lines).")
    document.data = _plain(document, root, ())
    return document


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigInvalid(
            f"The configuration {path} cannot be read: {error.strerror}.", fix="Name a readable file."
        ) from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigInvalid(f"The configuration {path} is over {MAX_FILE_BYTES} bytes.", fix="Name a smaller file.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigInvalid(f"{path}, line {line}: the file is not UTF-8.", fix="Save it as UTF-8.") from error


def _parse(path: Path, text: str) -> Any:
    try:
        return YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join((error.problem or error.context or "it cannot be parsed").split())
        # A duplicate key's message repeats its value, which may be anything.
        problem = problem.partition(" with value")[0]
        raise ConfigInvalid(f"{path}{where}: this is no valid YAML: {problem}.") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigInvalid(f"{path}: this is no valid YAML ({type(error).__name__}).") from error


def _plain(document: Document, value: Any, path: Path_) -> Any:
    document.nodes += 1
    # Aliases are shared while loading and would multiply here.
    if document.nodes > MAX_NODES or len(path) > 50:
        raise ConfigInvalid(f"{document.path}: over {MAX_NODES} values, or nested over 50 levels deep.")
    if isinstance(value, CommentedMap):
        result: dict[str, Any] = {}
        for key, item in value.items():
            line, column = _position(value, key)
            try:
                name = key if isinstance(key, str) else str(_scalar(document, key, (line, column)))
            except ValueError:
                # A list as a key, with such a number inside.
                raise _too_large(document, (line, column)) from None
            document.positions[*path, name] = (line, column)
            result[name] = _plain(document, item, (*path, name))
        return result
    if isinstance(value, CommentedSeq):
        items: list[Any] = []
        for index, item in enumerate(value):
            line, column = value.lc.item(index) if value.lc.data else (value.lc.line, value.lc.col)
            document.positions[*path, index] = (line + 1, column + 1)
            items.append(_plain(document, item, (*path, index)))
        return items
    return _scalar(document, value, document.positions.get(path))


def _position(mapping: CommentedMap, key: Any) -> Position:
    try:
        line, column = mapping.lc.key(key)
    except (KeyError, TypeError):
        # A merged key (<<) has no place of its own.
        line, column = mapping.lc.line or 0, mapping.lc.col or 0
    return line + 1, column + 1


def _scalar(document: Document, value: Any, position: Position | None) -> Any:
    # A number of thousands of digits cannot even be printed in a message.
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise _too_large(document, position)
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    return value


def _too_large(document: Document, position: Position | None) -> ConfigInvalid:
    where = f", line {position[0]}, column {position[1]}" if position else ""
    return ConfigInvalid(f"{document.path}{where}: the number is too large.", fix="Write a smaller one.")
