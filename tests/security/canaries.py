"""Secrets made to be found: whether any of them is in what a test has collected, in whatever encoding.

The search decodes what it is given instead of encoding what it looks for, so it shares nothing with the product's own
way of hiding.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
import secrets
from collections.abc import Iterator, Mapping
from urllib.parse import unquote_to_bytes

PREFIX = 20
"""Characters from which on the beginning of a canary counts as the canary."""

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{16,}")
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){12,}")
_ESCAPE = re.compile(rb"\\(?:u00([0-9a-fA-F]{2})|([\"\\/]))")


def canary(name: str) -> str:
    """A value that can be a header, with characters that URLs, JSON and HTML write differently."""
    return f'{name}-{secrets.token_hex(10)}/"&<+%\\{secrets.token_hex(6)}'


def plain_canary(name: str) -> str:
    """A value of letters and digits."""
    return f"{name}x{secrets.token_hex(16)}"


def leaks(collected: Mapping[str, bytes], canaries: Mapping[str, str]) -> list[str]:
    """Where which canary is, as `place: name`."""
    wanted = {name: value.encode()[:PREFIX] for name, value in canaries.items()}
    found: set[str] = set()
    for place, data in collected.items():
        for view in _views(data, depth=2):
            found.update(f"{place}: {name}" for name, value in wanted.items() if value in view)
    return sorted(found)


def _views(data: bytes, depth: int) -> Iterator[bytes]:
    """The bytes as they are, and what they mean in the encodings that occur."""
    yield data
    if b"%" in data:
        yield unquote_to_bytes(data)
        yield unquote_to_bytes(data.replace(b"+", b" "))
    if b"\\" in data:
        once = _unescaped(data)
        yield once
        yield _unescaped(once)
    if b"&" in data:
        yield html.unescape(data.decode("latin-1")).encode("latin-1", "replace")
    for match in _HEX.finditer(data):
        yield binascii.unhexlify(match.group())
    if depth:
        for match in _BASE64.finditer(data):
            run = match.group().translate(bytes.maketrans(b"-_", b"+/"))
            # A run may begin in the middle of a group.
            for start in range(4):
                piece = run[start:]
                yield from _views(base64.b64decode(piece[: len(piece) // 4 * 4]), depth - 1)


def _unescaped(data: bytes) -> bytes:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]) if match[1] else match[2], data)
