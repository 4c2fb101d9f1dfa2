"""What every wire format asks of texts, names, ids and arguments."""

from __future__ import annotations

import hashlib
import json
import re

from milepost.domain.messages import AssistantMessage

MAX_WIRE_ID = 40
MAX_WIRE_NAME = 64

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_WIRE_ID = re.compile(rf"[\x21-\x7e]{{1,{MAX_WIRE_ID}}}\Z")


def wire_text(text: str) -> str:
    """Text as an endpoint can take it: lone surrogates (not UTF-8) and NUL (ends a C string) become U+FFFD."""
    return _UNSENDABLE.sub("\ufffd", text)


def wire_tool_name(name: str) -> str:
    """A tool name of a past call within OpenAI's alphabet (letters, digits, `_`, `-`; 64 characters)."""
    return _NOT_IN_NAMES.sub("_", name)[:MAX_WIRE_NAME] or "unnamed"


def wire_arguments(raw: str) -> str:
    """The arguments of a past call: the raw text when it is a JSON object.

    Servers that parse them refuse anything else, so an object inside a JSON string is unpacked, nothing becomes `{}`,
    and text that is no object is wrapped, for the model to see what it wrote.
    """
    raw = wire_text(raw)
    if not raw.strip():
        return "{}"
    if parse_object(raw) is not None:
        return raw
    try:
        inner = json.loads(raw)
    except (ValueError, RecursionError):
        inner = None
    if isinstance(inner, str) and parse_object(inner) is not None:
        return wire_text(inner)
    return json.dumps({"malformed_arguments": raw}, ensure_ascii=False)


def wire_ids(message: AssistantMessage) -> list[str]:
    """One id per call, unique within the message; an id the wire does not allow is replaced by its digest."""
    result: list[str] = []
    for index, call in enumerate(message.calls):
        call_id = call.call_id
        if not _WIRE_ID.match(call_id) or call_id in result:
            digest = hashlib.sha256(f"{call_id}\n{index}".encode("utf-8", "surrogatepass")).hexdigest()
            call_id = f"call_{digest[:24]}"
        result.append(call_id)
    return result


def parse_object(text: str) -> dict[str, object] | None:
    """The JSON object that `text` is, or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
