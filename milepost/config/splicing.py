"""Changing one entry of a YAML mapping inside a text: every line that is not the entry's own stays as it is.

A round trip of the whole text would move comments that stand after an entry. So the entry alone is read, changed and
written, and its lines are put in the place of the old ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

Change = Callable[[CommentedMap], None]
"""Changes the mapping of a section in place."""


def edited(text: str, section: str, key: str, change: Change) -> str:
    """The text with `section.key` as `change` leaves it in a mapping that has that entry, if it is there, alone.

    The entry may be added, changed or removed. Raises YAMLError.
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    root = _yaml(text).compose(text)
    found = None if root is None else _entry(root, section)
    if found is None:
        made = CommentedMap()
        change(made)
        gap = "\n" if any(line.strip() for line in lines) else ""
        return "".join(lines) + (gap + _dumped(text, {section: made}, 0) if made else "")
    name, value = found
    entries = value.value if isinstance(value, MappingNode) and not value.flow_style else []
    if not entries:
        return _whole(lines, text, section, name, value, change)
    wanted = next(((k, v) for k, v in entries if k.value == key), None)
    indent = entries[0][0].start_mark.column
    held = CommentedMap()
    first = last = 1 + max(_last(lines, v, indent) for _, v in entries)
    if wanted is not None:
        first, last = wanted[0].start_mark.line, 1 + _last(lines, wanted[1], indent)
        try:
            # Without its indentation, since comments keep their column.
            held = _yaml(text).load("".join(line[min(indent, _depth(line)) :] for line in lines[first:last]))
        except YAMLError:
            # It names an anchor of another place.
            return _whole(lines, text, section, name, value, change)
    change(held)
    if wanted is not None and not held:
        first = _with_comments(lines, first, indent)
        if len(entries) == 1:
            first = name.start_mark.line
    new = _dumped(text, held, indent) if held else ""
    return "".join([*lines[:first], new, *lines[last:]])


def _whole(lines: list[str], text: str, section: str, name: Node, value: Node, change: Change) -> str:
    """A section on one line, or with anchors: it is written anew as a whole."""
    root = _yaml(text).load(text)
    entries = root[section] if isinstance(root[section], CommentedMap) else CommentedMap()
    change(entries)
    first, last = name.start_mark.line, 1 + _last(lines, value, name.start_mark.column)
    return "".join([*lines[:first], _dumped(text, {section: entries}, 0) if entries else "", *lines[last:]])


def _entry(root: Node, key: str) -> tuple[Node, Node] | None:
    pairs = root.value if isinstance(root, MappingNode) else []
    return next(((name, value) for name, value in pairs if name.value == key), None)


def _last(lines: list[str], node: Node, indent: int) -> int:
    """Index of the last line of a node's own text, without the comments and blank lines after it."""
    if isinstance(node, CollectionNode) and not node.flow_style and node.value:
        below = node.value[-1][1] if isinstance(node, MappingNode) else node.value[-1]
        return _last(lines, below, indent)
    line: int = node.end_mark.line
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        line -= 1 if node.end_mark.column == 0 else 0
        while line > node.start_mark.line and _outside(lines[min(line, len(lines) - 1)], indent):
            line -= 1
    elif node.end_mark.column == 0 and line > node.start_mark.line:
        line -= 1
    return min(line, len(lines) - 1)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _outside(line: str, indent: int) -> bool:
    stripped = line.strip()
    return not stripped or (stripped.startswith("#") and _depth(line) <= indent)


def _with_comments(lines: list[str], first: int, indent: int) -> int:
    """Where the comments right above an entry begin: they go with it."""
    while first and lines[first - 1].startswith(" " * indent + "#"):
        first -= 1
    return first


def _dumped(text: str, value: Any, indent: int) -> str:
    made = StringIO()
    _yaml(text).dump(value, made)
    return "".join(" " * indent + line if line.strip() else line for line in made.getvalue().splitlines(keepends=True))


def _yaml(text: str) -> YAML:
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = 4096
    mapping, dash = _indentation(text.splitlines())
    yaml.indent(mapping=mapping, sequence=dash + 2, offset=dash)
    return yaml


def _indentation(lines: list[str]) -> tuple[int, int]:
    """How far the text indents mappings, and the dashes of lists: as its first ones do."""
    mapping, dash = 2, 0
    for line in lines:
        depth = _depth(line)
        if depth and line.strip() and not line.lstrip(" ").startswith(("#", "- ")):
            mapping = min(depth, 8)
            break
    for before, line in itertools.pairwise(lines):
        if line.lstrip(" ").startswith("- ") and before.rstrip().endswith(":"):
            dash = max(0, _depth(line) - _depth(before))
            break
    return mapping, dash
