"""The stored form of entries, their searchable text, and the facts that searches need of them.

Format 1 is the canonical JSON of `{"format": 1, "content": {"type": "text", "text"} or {"type": "json", "value",
"text"?}, "metadata": {...}}`. Anything else is a bare JSON value of the format before it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import InvalidInput, PayloadTooLarge, RecordUnreadable
from milepost.domain.longterm import MAX_ENTRY_BYTES, MAX_METADATA, MAX_NAME_BYTES, RECORD_FORMAT, ContentType, Entry
from milepost.engine.lexical import TOKENS_VERSION, tokens
from milepost.ledger.codec import canonical_bytes
from milepost.ports.longterm import Vector

MAX_LABEL = 256
"""Characters of a label; a longer one is kept as its digest."""

_KEYS = {"format", "content", "metadata"}


@dataclass(frozen=True, slots=True)
class Facts:
    """How often each token occurs in the text, and a label for each entry of the metadata."""

    counts: Mapping[str, int]
    labels: tuple[str, ...]


def read(document: bytes, where: str) -> tuple[Entry, bool]:
    """A stored entry, and whether it is a bare value. `where` names the record.

    Raises RecordUnreadable: no JSON, or a later format.
    """
    try:
        value = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise RecordUnreadable(f"The record {where} is no JSON.", fix="Delete it, or restore a backup.") from error
    if not (isinstance(value, dict) and value.keys() == _KEYS and type(value["format"]) is int):
        return Entry(ContentType.JSON, value=value), True
    if value["format"] > RECORD_FORMAT:
        raise RecordUnreadable(
            f"The record {where} has format {value['format']}; this release knows formats up to {RECORD_FORMAT}.",
            fix="Use the release that wrote it, or a later one.",
        )
    try:
        return from_content(value["content"], value["metadata"]), False
    except InvalidInput as error:
        raise RecordUnreadable(f"The record {where} is damaged: {error.message}") from error


def from_content(content: Any, metadata: Any) -> Entry:
    """An entry from `{type: text, text}` or `{type: json, value, text?}`. Raises InvalidInput."""
    if not isinstance(content, Mapping) or content.get("type") not in ("text", "json"):
        raise InvalidInput(
            "The content has no known type.",
            field="content",
            fix='Write {"type": "text", "text": ...} or {"type": "json", "value": ...}.',
        )
    if not isinstance(metadata, Mapping):
        raise InvalidInput("The metadata is no JSON object.", field="metadata")
    kind, text = ContentType(content["type"]), content.get("text")
    wanted = {"type", "text"} if kind is ContentType.TEXT else {"type", "value", "text"}
    extra = sorted(map(str, content.keys() - wanted))
    if extra:
        raise InvalidInput(f"The content has an unknown field '{extra[0][:100]}'.", field="content")
    if not isinstance(text, str) and (text is not None or kind is ContentType.TEXT):
        raise InvalidInput("The text of the content is no text.", field="content.text")
    if kind is ContentType.JSON and "value" not in content:
        raise InvalidInput("The content has no value.", field="content.value")
    return Entry(kind, text, content.get("value"), dict(metadata))


def content_of(entry: Entry) -> dict[str, Any]:
    """The content as it is written and shown."""
    if entry.type is ContentType.TEXT:
        return {"type": "text", "text": entry.text or ""}
    own = {} if entry.text is None else {"text": entry.text}
    return {"type": "json", "value": entry.value, **own}


def document(entry: Entry) -> bytes:
    """The stored form. Raises InvalidInput, PayloadTooLarge."""
    if len(entry.metadata) > MAX_METADATA:
        raise InvalidInput(f"The metadata has more than {MAX_METADATA} entries.", field="metadata")
    for name in entry.metadata:
        check_name(name, "metadata", "The name of a metadata entry")
    whole = {"format": RECORD_FORMAT, "content": content_of(entry), "metadata": dict(entry.metadata)}
    try:
        data = canonical_bytes(whole)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"The entry cannot be written as JSON: {str(error)[:200]}.", field="content") from error
    if len(data) > MAX_ENTRY_BYTES:
        raise PayloadTooLarge(
            f"The entry has {len(data)} bytes; at most {MAX_ENTRY_BYTES} are accepted.",
            field="content",
            fix="Keep a shorter text, or several records.",
        )
    return data


def check_name(name: str, field: str, what: str) -> None:
    """Raise InvalidInput unless a store can keep `name` as a namespace or key."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} has a lone surrogate.", field=field) from None
    if not 1 <= size <= MAX_NAME_BYTES or "\0" in name:
        raise InvalidInput(f"{what} must have 1 to {MAX_NAME_BYTES} bytes and no NUL.", field=field)


def searchable(entry: Entry) -> str:
    """What is searched: the text, or names, texts and numbers of the value in their order."""
    return entry.text if entry.text is not None else " ".join(_words_of(entry.value))


def _words_of(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            for name, inner in reversed(list(item.items())):
                waiting += [inner, str(name)]
        elif isinstance(item, list):
            waiting += reversed(item)
        elif isinstance(item, str):
            yield item
        elif item is not None and not isinstance(item, bool):
            yield str(item)


def label(name: str, value: Any) -> str:
    """One entry of a metadata as a text: two are equal if names and JSON values are.

    Raises InvalidInput: the value is no JSON.
    """
    try:
        text = f"{name}={canonical_bytes(_plain(value)).decode()}"
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput("A metadata value is no JSON.", field="metadata") from error
    if len(text) <= MAX_LABEL:
        return text
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: Any) -> Any:
    """JSON knows one number 2, which Python reads as 2 or 2.0 by how it is written."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value


def facts(entry: Entry) -> bytes:
    """What searches need of an entry."""
    counts = Counter(tokens(searchable(entry)))
    labels = [label(name, value) for name, value in entry.metadata.items()]
    return canonical_bytes({"v": TOKENS_VERSION, "t": counts, "m": sorted(labels)})


def read_facts(data: bytes) -> Facts | None:
    """The facts; None if an earlier or later release counted other tokens, or they are damaged."""
    try:
        found = json.loads(data)
        if found["v"] != TOKENS_VERSION:
            return None
        return Facts(found["t"], tuple(found["m"]))
    except (ValueError, KeyError, TypeError):
        return None


def sound(vector: Vector, space: EmbeddingSpace) -> bool:
    """Whether a vector has its size, and is what was written."""
    return len(vector.data) == space.vector_bytes and crc32(vector.data) == vector.checksum
