"""Splitting a text into the small pieces in which an answer streams."""

from __future__ import annotations

import re

MAX_PIECE = 16
_PIECE = re.compile(rf"\S{{1,{MAX_PIECE}}}\s?|\s")


def pieces(text: str) -> list[str]:
    """Words with the space after them, long ones cut; joined they are the text."""
    return _PIECE.findall(text)
