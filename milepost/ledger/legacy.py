"""The contents of files of before 1.0 (docs/legacy.md). Pure: bytes in, values out; what cannot be read is left out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from milepost.domain.errors import LegacyUnusable
from milepost.domain.memory import MAX_DAILY_TEXT, DailyEntry
from milepost.domain.semantic import MAX_TEXT_BYTES, MemoryEntry
from milepost.domain.usage import UNKNOWN_USAGE, Usage

MAX_LINES = 100_000
MAX_BLOCKS = 32
MAX_MESSAGES = 100_000
MAX_CALLS = 128
MAX_ID = 100
_KIND = re.compile("[a-z_]{1,32}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BAD = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
_TOKENS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")


def core_blocks(data: bytes) -> dict[str, str]:
    """Values by label: `{"blocks": {LABEL: TEXT or {"value": TEXT}}}`. Raises LegacyUnusable."""
    try:
        blocks = json.loads(data)["blocks"]
        found = {label: value if isinstance(value, str) else value["value"] for label, value in blocks.items()}
        if len(found) > MAX_BLOCKS or not all(isinstance(value, str) for value in found.values()):
            raise ValueError
    except _BAD as error:
        raise LegacyUnusable("The core blocks cannot be read.") from error
    return found


def daily_entries(data: bytes, source: str) -> tuple[list[DailyEntry], int]:
    """Entries of one day's lines `{"at", "text", "kind"?, "speaker"?, "id"?}`, and how many lines cannot be read.

    `source` makes ids of those that have none.
    """
    entries: list[DailyEntry] = []
    damaged = 0
    for number, value in _objects(data):
        try:
            at, text = time_of(value["at"]), _text(value, "text")
        except _BAD:
            damaged += 1
            continue
        entry_id = _text(value, "id", f"legacy-{source}-{number}")
        kind, speaker = _text(value, "kind", "note"), _text(value, "speaker", "")
        entries.append(DailyEntry(entry_id, at, kind, speaker, text[:MAX_DAILY_TEXT], cut=len(text) > MAX_DAILY_TEXT))
    return entries, damaged


def memory_entries(data: bytes, at: int) -> list[MemoryEntry]:
    """Records of lines `{"text", "id"?, "at"?, "kind"?, "speaker"?}`; `at` is the time of those that have none."""
    found: list[MemoryEntry] = []
    for number, value in _objects(data):
        try:
            text = _text(value, "text")
            when = time_of(value["at"]) if "at" in value else at
        except _BAD:
            continue
        if not text.strip() or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            continue
        kind = _text(value, "kind", "fact")
        found.append(
            MemoryEntry(
                id=_text(value, "id", "")[:MAX_ID] or f"legacy-{number}",
                text=text,
                kind=kind if _KIND.fullmatch(kind) else "fact",
                at=when,
                speaker=_text(value, "speaker", "")[:MAX_ID],
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class LegacyCall:
    call_id: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class LegacyMessage:
    """`role` is user, assistant, tool or system. `call_id` names the call that a tool's message answers."""

    role: str
    text: str
    at: int | None = None
    calls: tuple[LegacyCall, ...] = ()
    call_id: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class LegacyConversation:
    """A checkpoint. `digest` is that of its bytes; `usage` is the sum of all turns."""

    digest: str
    messages: tuple[LegacyMessage, ...]
    provider: str
    model: str
    usage: Usage


def conversation(data: bytes) -> LegacyConversation:
    """A checkpoint `{"messages": [...], "provider"?, "model"?, "usage"?}`. Raises LegacyUnusable."""
    try:
        value = json.loads(data)
        items = value["messages"]
        if not isinstance(items, list) or len(items) > MAX_MESSAGES:
            raise ValueError
        return LegacyConversation(
            digest=hashlib.sha256(data).hexdigest(),
            messages=tuple(_message(item) for item in items),
            provider=_text(value, "provider", "imported"),
            model=_text(value, "model", "unknown"),
            usage=_usage(value.get("usage")),
        )
    except _BAD as error:
        raise LegacyUnusable("The checkpoint cannot be read.") from error


def time_of(value: Any) -> int:
    """Microseconds since the epoch of a time with an offset, or of seconds as a number. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError
    if isinstance(value, int | float):
        moment = _EPOCH + timedelta(seconds=value)
    else:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _message(value: Mapping[str, Any]) -> LegacyMessage:
    role = value["role"]
    if role not in ("user", "assistant", "tool", "system"):
        raise ValueError
    calls = [_call(item) for item in value.get("tool_calls") or []]
    if len(calls) > MAX_CALLS:
        raise ValueError
    return LegacyMessage(
        role=role,
        text=_text(value, "content", ""),
        at=time_of(value["at"]) if value.get("at") is not None else None,
        calls=tuple(calls),
        call_id=_text(value, "tool_call_id", ""),
        is_error=value.get("is_error") is True,
    )


def _call(value: Mapping[str, Any]) -> LegacyCall:
    arguments = value.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return LegacyCall(_text(value, "id"), _text(value, "name"), text)


def _usage(value: Any) -> Usage:
    if not isinstance(value, dict):
        return UNKNOWN_USAGE
    counts = [value.get(name, 0) for name in _TOKENS]
    if any(type(count) is not int or not 0 <= count < 2**53 for count in counts):
        raise ValueError
    return Usage(counts[0], counts[1], counts[2], counts[3], complete=value.get("complete") is True)


def _objects(data: bytes) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line number, object) of lines; what is no object is an empty one."""
    for number, line in enumerate(data.split(b"\n")[:MAX_LINES], start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        yield number, value if isinstance(value, dict) else {}


def _text(value: Mapping[str, Any], key: str, default: str | None = None) -> str:
    found = value.get(key, default)
    if not isinstance(found, str):
        raise TypeError(key)
    return found
