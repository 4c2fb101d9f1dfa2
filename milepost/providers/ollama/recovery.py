"""Calls that a model wrote as text instead of calling, in the forms that templates of small models lead to.

Only the Ollama route takes them: elsewhere a text is a text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from milepost.providers.raw_json import raw_at
from milepost.providers.wire import parse_object

MAX_TEXT = 64 * 1024
MAX_RECOVERED = 8
"""Calls of one answer; a text with more of them stays text."""

_FENCED = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)
_TAGGED = re.compile(r"<(tool_call|function_call)>\s*(.*?)\s*(?:</\1>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Written:
    """A call as it stands in a text; `arguments` is the JSON object as it was written."""

    tool: str
    arguments: str


def written_calls(text: str, tools: Collection[str]) -> list[Written]:
    """The calls that a whole text consists of, each of an offered tool; none if there is anything else in it."""
    text = text.strip()
    if not tools or not text or len(text) > MAX_TEXT:
        return []
    pieces = _pieces(text)
    if len(pieces) > MAX_RECOVERED:
        return []
    found = [call for piece in pieces if (call := _call(piece, tools)) is not None]
    return found if len(found) == len(pieces) else []


def _pieces(text: str) -> list[str]:
    """The JSON texts inside tags or one fence, else the text itself; nothing if anything stands beside them."""
    tagged = list(_TAGGED.finditer(text))
    if tagged:
        return [match.group(2) for match in tagged] if not _TAGGED.sub("", text).strip() else []
    fenced = _FENCED.fullmatch(text)
    return [fenced.group(1) if fenced else text]


def _call(piece: str, tools: Collection[str]) -> Written | None:
    value = parse_object(piece)
    if value is None:
        return None
    path = ["function"] if isinstance(value.get("function"), dict) else []
    inner = value["function"] if path else value
    assert isinstance(inner, dict)  # noqa: S101 - of one of the two objects above
    name = inner.get("name") or inner.get("tool") or inner.get("function")
    if not isinstance(name, str) or name not in tools:
        return None
    key = next((key for key in ("arguments", "parameters", "args") if key in inner), None)
    if key is None:
        return Written(name, "{}")
    if isinstance(inner[key], str):
        return Written(name, inner[key]) if parse_object(inner[key]) is not None else None
    return Written(name, raw_at(piece, *path, key) or "{}") if isinstance(inner[key], dict) else None
