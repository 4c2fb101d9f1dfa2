"""Strict reading of a YAML 1.2 document with line numbers."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from milepost.domain.errors import InvalidInput, PayloadTooLarge
from milepost.domain.suggestions import closest

MAX_SCRIPT_BYTES = 32 * 1024 * 1024
MAX_NUMBER_CHARACTERS = 400
"""More than any finite float has before its point; Python refuses to print whole numbers of over 4,300 digits."""

_TAG = "tag:yaml.org,2002:"


def invalid(line: int, text: str, fix: str | None = None) -> InvalidInput:
    """The error for something at a line of the script (counted from 1)."""
    return InvalidInput(f"Script line {line}: {text}", field="script", fix=fix)


def line_of(node: Node) -> int:
    return int(node.start_mark.line) + 1


def compose(text: str) -> Node:
    """The document's root. Raises InvalidInput with the line, or PayloadTooLarge."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_SCRIPT_BYTES:
        raise PayloadTooLarge.of("scripted provider", "script", size, MAX_SCRIPT_BYTES)
    try:
        root: Node | None = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise invalid(mark.line + 1 if mark else 1, f"not YAML: {error.problem or error.context}.") from None
    except (YAMLError, RecursionError, ValueError) as error:
        raise invalid(1, f"not YAML ({type(error).__name__}).") from None
    if root is None:
        raise invalid(1, "the script is empty.", "Write `responses:` with a list of answers.")
    _refuse_aliases(root)
    return root


def _refuse_aliases(root: Node) -> None:
    # An alias is the same node again; following them could multiply a small script without end.
    seen: set[int] = set()
    open_nodes = [root]
    while open_nodes:
        node = open_nodes.pop()
        if id(node) in seen:
            raise invalid(line_of(node), "anchors and aliases are not accepted.", "Write the value out.")
        seen.add(id(node))
        if isinstance(node, MappingNode):
            open_nodes.extend(part for pair in node.value for part in pair)
        elif isinstance(node, SequenceNode):
            open_nodes.extend(node.value)


def mapping(node: Node, what: str, allowed: Collection[str] | None = None) -> dict[str, Node]:
    """The entries of a mapping; unknown and repeated keys are refused, with the nearest known one."""
    if not isinstance(node, MappingNode):
        raise invalid(line_of(node), f"{what} must be a mapping, not {_kind(node)}.")
    result: dict[str, Node] = {}
    for key_node, value in node.value:
        key = text(key_node, f"a key of {what}")
        if key in result:
            raise invalid(line_of(key_node), f"{what} has '{key}' twice.")
        if allowed is not None and key not in allowed:
            near = closest(key, allowed)
            hint = f"Did you mean '{near}'?" if near else f"Known: {', '.join(sorted(allowed))}."
            raise invalid(line_of(key_node), f"{what} has no key '{key[:80]}'.", hint)
        result[key] = value
    return result


def sequence(node: Node, what: str) -> list[Node]:
    if not isinstance(node, SequenceNode):
        raise invalid(line_of(node), f"{what} must be a list, not {_kind(node)}.")
    return list(node.value)


def text(node: Node, what: str) -> str:
    """A text; a number or a date counts as it is written, `null` and containers do not."""
    if not isinstance(node, ScalarNode) or node.tag == f"{_TAG}null":
        raise invalid(line_of(node), f"{what} must be a text, not {_kind(node)}.")
    return str(node.value)


def number(node: Node, what: str, low: float, high: float) -> float:
    value = json_value(node)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise invalid(line_of(node), f"{what} must be a number from {low:g} to {high:g}.")
    return float(value)


def integer(node: Node, what: str, low: int, high: int) -> int:
    value = json_value(node)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid(line_of(node), f"{what} must be a whole number from {low} to {high}.")
    return value


def boolean(node: Node, what: str) -> bool:
    value = json_value(node)
    if not isinstance(value, bool):
        raise invalid(line_of(node), f"{what} must be true or false.")
    return value


def json_value(node: Node) -> Any:
    """Any value JSON has; what JSON lacks (dates, tags of one's own) is its text."""
    if isinstance(node, MappingNode):
        return {key: json_value(value) for key, value in mapping(node, "the mapping").items()}
    if isinstance(node, SequenceNode):
        return [json_value(item) for item in node.value]
    return _scalar(node)


def _scalar(node: Node) -> Any:
    raw = str(node.value)
    tag = str(node.tag).removeprefix(_TAG)
    if tag in ("int", "float") and len(raw) > MAX_NUMBER_CHARACTERS:
        raise invalid(line_of(node), f"a number of over {MAX_NUMBER_CHARACTERS} characters.", "Put it in quotes.")
    try:
        match tag:
            case "null":
                return None
            case "bool":
                return raw.lower() == "true"
            case "int":
                return int(raw.replace("_", ""), 0) if raw.lstrip("+-")[:2].lower() in ("0x", "0o") else int(raw)
            case "float":
                value = float(raw)
                if not math.isfinite(value):
                    raise ValueError
                return value
    except ValueError:
        raise invalid(line_of(node), f"'{raw[:80]}' is not a number JSON has.", "Put it in quotes.") from None
    return raw


def _kind(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    return "null" if node.tag == f"{_TAG}null" else "a single value"
