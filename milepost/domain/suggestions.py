"""What a person may have meant by a name that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name that is most like the word; None if none is like it."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def nearest(word: str, known: Iterable[str]) -> str:
    """`Did you mean 'X'? ` for the known name that is most like the word; empty if none is like it."""
    close = closest(word[:200], known)
    return f"Did you mean '{close}'? " if close else ""
