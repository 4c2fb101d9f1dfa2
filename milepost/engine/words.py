"""Words of a text, the same for every index that searches texts.

A word is a run of letters and digits, without case and diacritics: NFKD, case folding, no combining marks, NFC. Marks
that make other syllables (vowel signs, viramas, nuktas, voicing: combining classes 0 and 7 to 9) stay. Scripts that
write no spaces (Han, Kana, Thai, Lao, Khmer, Burmese) give a word for each character, so that any part of a sentence
is found as a sequence of words. `snake_case`, paths and the like are the words between their signs. Words are cut after
64 characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache

MAX_WORD = 64

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
_KEPT = frozenset({0, 7, 8, 9})
"""Canonical combining classes (Unicode, UAX #44) of what is no diacritic."""

_STYLE = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]")
"""Control sequences of ECMA-48, section 5.4."""

_PIECE = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """The words of a text in order."""
    text = _unstyled(text)
    if text.isascii():
        return [word[:MAX_WORD] for word in _PIECE.findall(text.lower())]
    return [word for word, _, _ in placed_words(text)]


def placed_words(text: str) -> Iterator[tuple[str, int, int]]:
    """Words with the characters (start, end) of the text that they come from."""
    for run in _runs().finditer(_unstyled(text)):
        for word in _folded(run.group()[: 4 * MAX_WORD]):
            yield word, run.start(), run.end()


def _unstyled(text: str) -> str:
    """The text, of the same length, without what colors a terminal: `ESC [31mError` has no word `31merror`."""
    if "\x1b" not in text:
        return text
    return _STYLE.sub(lambda found: " " * len(found.group()), text)


@lru_cache(maxsize=16_384)
def _folded(run: str) -> tuple[str, ...]:
    if run.isascii():
        return (run.lower()[:MAX_WORD],)
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", run).casefold())
    kept = "".join(char for char in text if unicodedata.combining(char) in _KEPT)
    pieces = _runs().findall(unicodedata.normalize("NFC", kept))
    return tuple(piece[:MAX_WORD] for piece in pieces)


@cache
def _runs() -> re.Pattern[str]:
    """Runs that make words: a character of an unspaced script, or a run of others, each with its combining marks."""
    marks = "".join(f"{chr(first)}-{chr(last)}" for first, last in _mark_ranges())
    letters = rf"[^\W_{_UNSPACED}]"
    return re.compile(f"[{_UNSPACED}][{marks}]*|{letters}+(?:[{marks}]+{letters}*)*")


def _mark_ranges() -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for code in (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0)):
        if not unicodedata.category(chr(code)).startswith("M"):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return ranges
