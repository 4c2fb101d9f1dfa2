"""What every wire format asks of texts, names, ids and arguments."""

from __future__ import annotations

import hashlib
import json
import re

from milepost.domain.messages import AssistantMessage

MAX_WIRE_ID = 40
MAX_WIRE_NAME = 64

EMPTY = "(empty)"
"""Stands for a text without a visible character where a service refuses such a text."""

BEGINNING = "(The conversation begins with an answer.)"
"""Sent as the user's first message where a service wants one and the conversation has none."""

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
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
    value = parse_object(raw)
    if value is not None:
        # An escaped lone surrogate is a JSON text that most parsers refuse.
        clean = (
            _SURROGATE_ESCAPE.search(raw) is None or _UNSENDABLE.search(json.dumps(value, ensure_ascii=False)) is None
        )
        return raw if clean else wire_text(json.dumps(value, ensure_ascii=False))
    try:
        inner = json.loads(raw)
    except (ValueError, RecursionError):
        inner = None
    if isinstance(inner, str) and parse_object(inner) is not None:
        return wire_arguments(inner)
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
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_constant(name: str) -> object:
    """`NaN` and `Infinity` are Python's JSON, nobody else's."""
    raise ValueError(name)


class WireIds:
    """Ids of the calls of one conversation as a wire format takes them: of its alphabet, and none twice.

    An id that fits stays. Another is replaced by one made of its digest, which is the same in every later request.
    """

    def __init__(self, fits: re.Pattern[str], prefix: str, length: int) -> None:
        """Made ids are `prefix` and hexadecimal digits, `length` characters in all; `fits` has to match them."""
        self._fits = fits
        self._prefix = prefix
        self._digits = length - len(prefix)
        self._taken: set[str] = set()

    def next(self, call_id: str) -> str:
        """The id for the next call of the conversation."""
        wanted, attempt = call_id, 0
        while wanted in self._taken or not self._fits.fullmatch(wanted):
            digest = hashlib.sha256(f"{call_id}\n{attempt}".encode("utf-8", "surrogatepass")).hexdigest()
            wanted, attempt = self._prefix + digest[: self._digits], attempt + 1
        self._taken.add(wanted)
        return wanted
