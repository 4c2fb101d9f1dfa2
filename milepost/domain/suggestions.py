"""What a person may have meant by a name that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """`Did you mean 'X'? ` for the known name that is most like the word; empty if none is like it."""
    close = difflib.get_close_matches(word[:200], list(known), n=1, cutoff=0.6)
    return f"Did you mean '{close[0]}'? " if close else ""
