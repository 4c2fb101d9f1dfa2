"""Frames between a worker and the supervisor: two lengths, a JSON object, raw bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

PROTOCOL = 3
MAX_HEAD = 256 * 1024
MAX_BODY = 24 * 1024 * 1024
_LENGTHS = struct.Struct(">II")

Frame = tuple[dict[str, Any], bytes]


class WireError(Exception):
    """The peer does not speak this protocol, or a frame is over a bound."""


def encode(head: dict[str, Any], body: bytes = b"") -> bytes:
    """One frame. Lone surrogates in texts survive: JSON is written as ASCII."""
    data = json.dumps(head, separators=(",", ":")).encode("ascii")
    if len(data) > MAX_HEAD or len(body) > MAX_BODY:
        raise WireError(f"frame of {len(data)} + {len(body)} bytes is over {MAX_HEAD} + {MAX_BODY}")
    return _LENGTHS.pack(len(data), len(body)) + data + body


class Decoder:
    """Turns arbitrary pieces of a byte stream into frames; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            head_size, body_size = _LENGTHS.unpack_from(self._buffer)
            if head_size > MAX_HEAD or body_size > MAX_BODY:
                raise WireError(f"frame of {head_size} + {body_size} bytes is over {MAX_HEAD} + {MAX_BODY}")
            end = _LENGTHS.size + head_size + body_size
            if len(self._buffer) < end:
                return
            split = _LENGTHS.size + head_size
            try:
                head = json.loads(bytes(self._buffer[_LENGTHS.size : split]))
            except ValueError as error:
                raise WireError(f"frame head is not JSON: {error}") from None
            if not isinstance(head, dict):
                raise WireError("frame head is not an object")
            body = bytes(self._buffer[split:end])
            del self._buffer[:end]
            yield head, body
