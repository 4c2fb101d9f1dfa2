"""Small texts that people read, the same in every format."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from milepost.domain.effects import EffectState
from milepost.domain.usage import Usage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_STYLE = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]")

MAX_OUTPUT_CHARACTERS = 64 * 1024
"""Of a tool's output that is shown; all of it is in the JSON export."""

CALL_STATES = {
    EffectState.SUCCEEDED: "done",
    EffectState.FAILED: "failed",
    EffectState.UNCERTAIN: "outcome unknown",
    EffectState.CANCELLED: "cancelled",
    EffectState.DENIED: "denied",
    EffectState.DISPATCHED: "no result",
    EffectState.AWAITING_APPROVAL: "waits for approval",
    EffectState.PLANNED: "not run",
}


def clean(text: str) -> str:
    """The text without what no document can hold, or what would change the order of what is read around it."""
    plain = _STYLE.sub("", text) if "\x1b" in text else text
    return _BIDI.sub("\N{REPLACEMENT CHARACTER}", _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", plain))


def one_line(text: str, limit: int) -> str:
    """The beginning of a text on one line."""
    line = " ".join(clean(text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def size_words(size: int) -> str:
    """A number of bytes as people say it."""
    for unit, factor in (("MiB", 1024**2), ("KiB", 1024)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def moment(microseconds: int) -> str:
    """A time to the second, in UTC."""
    return (_EPOCH + timedelta(microseconds=microseconds)).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(microseconds: int) -> str:
    """How long something took."""
    seconds = max(0, microseconds) / 1_000_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def spent(usage: Usage) -> str:
    """Tokens, and what they cost where that is known."""
    if not usage.total_tokens and not usage.complete:
        return "tokens unknown"
    known = "" if usage.complete else "at least "
    parts = [f"{known}{usage.total_tokens:,} tokens"]
    cost = usage.cost
    if cost is not None and (cost.micros or cost.complete):
        parts.append(f"{'' if cost.complete else 'at least '}{cost.amount:.4f} {cost.currency}")
    return " · ".join(parts)
