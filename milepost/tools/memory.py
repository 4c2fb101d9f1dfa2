"""Tools of an agent's memory: how a model sees them, what their arguments mean, what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from milepost.domain.errors import InvalidInput
from milepost.domain.memory import (
    DAILY_PREVIEW_CHARACTERS,
    MAX_BLOCK_LIMIT,
    MAX_DAILY_DAYS,
    MAX_RECALL,
    BlockSpec,
    BlockVersion,
    DailyEntry,
    Recall,
)
from milepost.domain.tools import ToolDefinition
from milepost.engine.reminders import day_and_time, item_line
from milepost.tools.rendering import ToolOutput

SEARCH_ITEM_CHARACTERS = 4000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _text(description: str = "", *, least: int = 1) -> dict[str, Any]:
    return {"type": "string", "minLength": least} | ({"description": description} if description else {})


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_BLOCK = _text("Its name.")
_MOMENT = "Date or time, ISO 8601; UTC unless it has an offset."

MEMORY_DEFINITIONS = (
    ToolDefinition(
        "core_memory_append",
        "Add a line to a block of your core memory.",
        _object({"block": _BLOCK, "text": _text()}, "block", "text"),
    ),
    ToolDefinition(
        "core_memory_replace",
        "Replace text in a block of your core memory. 'old' must be in it exactly once; an empty 'new' removes it.",
        _object({"block": _BLOCK, "old": _text(), "new": _text(least=0)}, "block", "old", "new"),
    ),
    ToolDefinition(
        "core_memory_set",
        "Write a block of your core memory anew, in place of what it says now.",
        _object({"block": _BLOCK, "value": _text(least=0)}, "block", "value"),
    ),
    ToolDefinition(
        "recall_search",
        "Search what was said earlier in this Session, by meaning and words; for what you no longer see.",
        _object(
            {
                "query": _text(),
                "k": {"type": "integer", "minimum": 1, "maximum": MAX_RECALL, "description": "Default 5."},
            },
            "query",
        ),
    ),
    ToolDefinition(
        "recall_timeframe",
        f"List what was said in this Session between two times, at most {MAX_DAILY_DAYS} days, oldest first.",
        _object({"from": _text(_MOMENT), "to": _text("The same; a date includes its day.")}, "from", "to"),
    ),
    ToolDefinition(
        "forget",
        "Forget a record that recall_search found: it is not recalled any more.",
        _object({"id": _text()}, "id"),
    ),
)

MEMORY_ARGUMENT_BYTES = {
    ("core_memory_append", "block"): 64,
    ("core_memory_replace", "block"): 64,
    ("core_memory_set", "block"): 64,
    ("core_memory_append", "text"): 4 * MAX_BLOCK_LIMIT,
    ("core_memory_replace", "old"): 4 * MAX_BLOCK_LIMIT,
    ("core_memory_replace", "new"): 4 * MAX_BLOCK_LIMIT,
    ("core_memory_set", "value"): 4 * MAX_BLOCK_LIMIT,
    ("recall_search", "query"): 64 * 1024,
    ("recall_timeframe", "from"): 64,
    ("recall_timeframe", "to"): 64,
    ("forget", "id"): 128,
}
"""Largest accepted size of an argument, in UTF-8 bytes."""


def timeframe(start: str, end: str) -> tuple[int, int]:
    """(start, end) of a range in microseconds since the epoch, the end exclusive; a date stands for its whole day.

    Raises InvalidInput: no time, the wrong order, or more than 31 days.
    """
    first, last = _moment(start, "from", whole_day=False), _moment(end, "to", whole_day=True)
    if last <= first:
        raise InvalidInput("'to' is not after 'from'.", field="to", fix="Swap them, or name a longer time.")
    if last - first > timedelta(days=MAX_DAILY_DAYS):
        raise InvalidInput(
            f"The time is longer than {MAX_DAILY_DAYS} days.", field="to", fix="Ask for a part of it at once."
        )
    return _us(first), _us(last)


def _moment(text: str, field: str, *, whole_day: bool) -> datetime:
    """The time that a text names; for a date its beginning, or with `whole_day` its end."""
    try:
        if len(text) == len("2026-11-30"):
            day = datetime.combine(date.fromisoformat(text), time(), UTC)
            return day + timedelta(days=1) if whole_day else day
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"'{field}' is no date or time: {text[:60]!r}.",
            field=field,
            fix="Write it like 2026-11-30 or 2026-11-30T15:30:00+01:00.",
        ) from None


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def render_edit(spec: BlockSpec, version: BlockVersion) -> ToolOutput:
    """What a model is told of an edit that was made."""
    text = f"The block '{spec.label}' is at version {version.number}, {len(version.value)} of {spec.limit} characters."
    return ToolOutput(text, False, {"block": spec.label, "version": version.number})


def render_recall(found: Recall) -> ToolOutput:
    """Records with their reasons, best first."""
    lines = [item_line(item, SEARCH_ITEM_CHARACTERS) for item in found.items] or ["[nothing fits]"]
    if found.incomplete:
        lines.append(f"[{found.incomplete} records have no vector yet and were searched by their words only]")
    detail = {"ids": [item.id for item in found.items], "scores": [item.score for item in found.items]}
    return ToolOutput("\n".join(lines), False, detail)


def render_entries(entries: Sequence[DailyEntry], *, more: bool) -> ToolOutput:
    """Entries of the daily log, one after another, shortened."""
    lines = [entry_line(entry) for entry in entries] or ["[nothing was said in that time]"]
    if more:
        lines.append(f"[there is more; go on from {day_and_time(entries[-1].at)} UTC, or ask for a shorter time]")
    return ToolOutput("\n".join(lines), False, {"entries": len(entries)})


def entry_line(entry: DailyEntry) -> str:
    """An entry on one line, at most 500 characters of its text."""
    text = " ".join(entry.text.split())
    if entry.cut or len(text) > DAILY_PREVIEW_CHARACTERS:
        text = f"{text[:DAILY_PREVIEW_CHARACTERS]}…"
    where = f"turn {entry.turn_number}, " if entry.turn_number else ""
    return f"- [{where}{day_and_time(entry.at)}] {entry.speaker}: {text}"
