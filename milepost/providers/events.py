"""Reading JSON events whose shapes are in question: whatever a server sends, the reader gets what it asked for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from milepost.domain.errors import ModelUnavailable
from milepost.providers.faults import malformed


def event_object(provider: str, data: str) -> dict[str, Any]:
    """The object that an event is. Raises ModelUnavailable for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ModelUnavailable(f"Provider '{provider}' sent an event that is not JSON.") from None
    if not isinstance(value, dict):
        raise ModelUnavailable(
            f"Provider '{provider}' sent an event that is a JSON {type(value).__name__}, not an object."
        )
    return value


def member(provider: str, owner: Mapping[str, Any], key: str, what: str) -> dict[str, Any]:
    """An object inside an object; an empty one where there is none. Raises ModelAnswerMalformed for another type."""
    value = owner.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise malformed(provider, value, what, "an object")
    return value


def items(provider: str, owner: Mapping[str, Any], key: str, what: str) -> list[dict[str, Any]]:
    """Objects in a list; none where there is no list. Raises ModelAnswerMalformed for other types."""
    value = owner.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise malformed(provider, value, f"'{key}'", "a list")
    for item in value:
        if not isinstance(item, dict):
            raise malformed(provider, item, what, "an object")
    return value


def text_of(owner: Mapping[str, Any], key: str, notes: list[str]) -> str:
    """A text; one that is none is left out, which is noted."""
    value = owner.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    note(notes, TEXT_DROPPED)
    return ""


def tool_name(provider: str, value: object) -> str:
    """The name of a tool. A number stands for its digits: the model can be told that there is no such tool."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
        return str(value)
    raise malformed(provider, value, "the name of a tool", "a text")


def token_count(value: object) -> int | None:
    """A number of tokens, or None for anything that is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # In this order: no whole number can be made of an infinite one.
    if not math.isfinite(value) or not 0 <= value <= MAX_COUNT or value != int(value):
        return None
    return int(value)


def note(notes: list[str], text: str) -> None:
    """Add a fact to record: each once, and at most `MAX_NOTES`."""
    if len(notes) < MAX_NOTES and text not in notes:
        notes.append(text)


def kind_name(kind: object) -> str:
    """A type as a note may name it: whole or not at all, since a part of anything might be a part of a key."""
    return f"type '{kind}'" if isinstance(kind, str) and _KIND.fullmatch(kind) else "an unknown type"


_KIND = re.compile(r"[A-Za-z_.]{1,40}")

MAX_NOTES = 32

TEXT_DROPPED = "A piece of the answer's text was no text and was left out."

MAX_COUNT = 10**12
"""A number above this counts no tokens."""
