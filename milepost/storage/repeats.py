"""A tool's output that was shortened for the model is not kept beside the whole: it is said which parts of the whole
it is made of.

Compression does not see this by itself, since its window of 32 KiB is shorter than what is repeated. Such a payload of
`tool.finished` is kept as the byte 2, a line of canonical JSON and the payload without the text of `output`. The line
is [where the text belongs, its parts]; a part is [at, length] in the rest, or the bytes themselves, read as Latin-1.
Readers get the payload byte for byte as it was appended, and its hash is of all of it.
"""

from __future__ import annotations

import json
from typing import Final

from milepost.ledger.codec import canonical_bytes

MARK: Final = b"\x02"
"""No payload begins with it: they are JSON."""

SHORTEST: Final = 4096
_WHOLE: Final = b'"full_output":{"blob":null,"text":"'
_TEXT: Final = b'"output":{"blob":null,"text":"'
_END: Final = b'"},"round":'
_PROBE: Final = 96
_MAX_MISSES: Final = 32

Part = list[int] | str


def without_repeats(payload: bytes) -> bytes:
    """The form to keep a payload in; itself, unless it repeats much of a tool's output."""
    whole = payload.find(_WHOLE)
    start = payload.rfind(_TEXT) + len(_TEXT)
    end = payload.find(_END, start)
    # No quotation mark stands unescaped in a text, so what is found are the fields themselves.
    if whole < 0 or start < whole or end - start < SHORTEST:
        return payload
    rest = payload[:start] + payload[end:]
    parts = _parts(payload[start:end], rest, whole + len(_WHOLE))
    kept = MARK + canonical_bytes([start, parts]) + b"\n" + rest
    return kept if len(kept) < len(payload) - SHORTEST // 2 and with_repeats(kept) == payload else payload


def with_repeats(kept: bytes) -> bytes:
    """The payload that `without_repeats` was given. Of a damaged form itself: the event's hash does not hold."""
    if not kept.startswith(MARK):
        return kept
    line, _, rest = kept[len(MARK) :].partition(b"\n")
    try:
        start, parts = json.loads(line)
        text = b"".join(_bytes(part, rest) for part in parts)
        return rest[:start] + text + rest[start:]
    except (ValueError, TypeError):
        return kept


def _bytes(part: Part, rest: bytes) -> bytes:
    if isinstance(part, str):
        return part.encode("latin-1")
    at, length = part
    return rest[at : at + length]


def _parts(text: bytes, rest: bytes, first: int) -> list[Part]:
    """Cover `text` by pieces of `rest` from `first` on; what is not found there, line by line, is said as it is."""
    parts: list[Part] = []
    plain: list[bytes] = []
    place, misses = 0, 0
    while place < len(text) and misses < _MAX_MISSES:
        at = rest.find(text[place : place + _PROBE], first)
        if at < 0:
            misses += 1
            line = text.find(b"\\n", place)
            after = len(text) if line < 0 else line + 2
            plain.append(text[place:after])
        else:
            after = place + _common(text, place, rest, at)
            if plain:
                parts.append(b"".join(plain).decode("latin-1"))
                plain = []
            parts.append([at, after - place])
        place = after
    plain.append(text[place:])
    if any(plain):
        parts.append(b"".join(plain).decode("latin-1"))
    return parts


def _common(one: bytes, at: int, other: bytes, other_at: int) -> int:
    """How many bytes agree, found by halving: comparing slices is much faster than comparing bytes."""
    low, high = 0, min(len(one) - at, len(other) - other_at)
    while low < high:
        middle = (low + high + 1) // 2
        if one[at + low : at + middle] == other[other_at + low : other_at + middle]:
            low = middle
        else:
            high = middle - 1
    return low
