"""Canonical bytes of domain values.

Format: JSON (RFC 8259), keys sorted by code point, no insignificant white space, UTF-8. NUL is written `\\u0000` and a
lone surrogate `\\udXXX` (JSON escapes), so every Python string survives byte for byte and the bytes are always valid
UTF-8, which PostgreSQL's text types would refuse for some of them; payloads are stored as bytes.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, TypeVar

import cattrs
from cattrs.strategies import configure_tagged_union

from milepost.domain.errors import LedgerCorrupt, UnknownEvent
from milepost.domain.events import EVENT_TYPES, Event
from milepost.domain.messages import (
    AssistantMessage,
    AssistantPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolMessage,
    UserMessage,
)
from milepost.ledger.upcast import upcast

T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=False, prefer_attrib_converters=False)
    for union, names in (
        (AssistantPart, {TextPart: "text", ReasoningPart: "reasoning", ToolCallPart: "tool_call"}),
        (Message, {UserMessage: "user", AssistantMessage: "assistant", ToolMessage: "tool"}),
    ):
        configure_tagged_union(union, converter, tag_generator=names.__getitem__, tag_name="kind")
    # As text: a JSON number is read as a binary fraction. One number has one text.
    converter.register_unstructure_hook(Decimal, decimal_text)
    converter.register_structure_hook(Decimal, lambda value, _: Decimal(value))
    return converter


def decimal_text(value: Decimal) -> str:
    """The shortest plain decimal notation of a finite number."""
    return f"{value.normalize():f}" if value else "0"


_CONVERTER = _converter()


def canonical_bytes(value: Any) -> bytes:
    """Encode a JSON-shaped value (dict, list, str, int, float, bool, None) canonically.

    Raises:
        ValueError: for NaN and infinities, which JSON does not have.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text).encode("utf-8")


def parse(data: bytes) -> Any:
    """Decode bytes that `canonical_bytes` made."""
    return json.loads(data)


def encode(value: Any) -> bytes:
    """Encode a domain dataclass canonically."""
    return canonical_bytes(_CONVERTER.unstructure(value))


def to_json(value: Any) -> Any:
    """A domain dataclass as a JSON-shaped value."""
    return _CONVERTER.unstructure(value)


def decode(data: bytes, cls: type[T]) -> T:
    """Decode a domain dataclass from canonical bytes."""
    return _CONVERTER.structure(json.loads(data), cls)


def from_json(value: Any, cls: type[T]) -> T:
    """A domain dataclass from a JSON-shaped value."""
    return _CONVERTER.structure(value, cls)


def decode_event(type_: str, version: int, payload: bytes) -> Event:
    """Decode a stored event of this or any earlier version.

    Raises:
        UnknownEvent: the type or a newer version was written by a later release.
        LedgerCorrupt: the payload is damaged.
    """
    cls = EVENT_TYPES.get(type_)
    if cls is None or version > cls.VERSION:
        raise UnknownEvent(
            f"The ledger holds an event '{type_}' version {version} that this release does not know.",
            fix="Use the release that wrote it, or a later one.",
        )
    try:
        value = upcast(type_, version, cls.VERSION, json.loads(payload))
        return _CONVERTER.structure(value, cls)
    except (ValueError, TypeError, KeyError, cattrs.BaseValidationError) as error:
        raise LedgerCorrupt(
            f"An event '{type_}' of the ledger cannot be read ({type(error).__name__}).",
            fix="Restore the ledger from a backup; nothing was changed.",
        ) from error
