"""JSON with pieces that go out, or were received, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WHITESPACE = " \t\n\r"
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class RawJson:
    """JSON text that stands in a document as it is."""

    text: str


def encode(value: Any) -> bytes:
    """Compact UTF-8 JSON of objects, lists, scalars and `RawJson`; a lone surrogate becomes `?`."""
    return _encode(value).encode("utf-8", "replace")


def _encode(value: Any) -> str:
    if isinstance(value, RawJson):
        return value.text
    if isinstance(value, Mapping):
        return (
            "{"
            + ",".join(f"{json.dumps(str(key), ensure_ascii=False)}:{_encode(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_encode, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def raw_at(text: str, *path: str | int) -> str | None:
    """The part of a JSON document at a path of object keys and list indices, as it is written there.

    None where there is no such part. The text has to be JSON: whoever asks has parsed it before.
    """
    start = _skip(text, 0)
    for step in path:
        found = _member(text, start, step) if isinstance(step, str) else _item(text, start, step)
        if found is None:
            return None
        start = found
    return text[start : _DECODER.raw_decode(text, start)[1]]


def raw_items(text: str) -> list[str]:
    """The items of a JSON list, each as it is written; none for what is no list. See `raw_at`."""
    at = _skip(text, 0)
    found: list[str] = []
    if text[at : at + 1] != "[":
        return found
    at = _skip(text, at + 1)
    while text[at] != "]":
        start, at = at, _DECODER.raw_decode(text, at)[1]
        found.append(text[start:at])
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at] == "," else at
    return found


def _member(text: str, start: int, key: str) -> int | None:
    """Where the value of the last member of that name begins; the last one counts, as in `json.loads`."""
    if text[start] != "{":
        return None
    found, at = None, _skip(text, start + 1)
    while text[at] == '"':
        name, at = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, at) + 1)
        if name == key:
            found = value
        at = _skip(text, _DECODER.raw_decode(text, value)[1])
        at = _skip(text, at + 1) if text[at] == "," else at
    return found


def _item(text: str, start: int, index: int) -> int | None:
    if text[start] != "[":
        return None
    at = _skip(text, start + 1)
    for _ in range(index):
        at = _skip(text, _DECODER.raw_decode(text, at)[1])
        if text[at] != ",":
            return None
        at = _skip(text, at + 1)
    return None if text[at] == "]" else at


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _WHITESPACE:
        at += 1
    return at
