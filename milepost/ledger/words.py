"""Passages of a text, in the words of `engine.words`: what both databases index, without a say in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from milepost.engine.words import placed_words, words

INDEX_VERSION = 1
"""Rises whenever words, passages or the choice of texts change: an index of another version must be rebuilt."""

MAX_PASSAGE_WORDS = 4000
MAX_SAME_WORD = 250
"""A tsvector keeps at most 256 places of a word; a passage ends before one is lost."""
OVERLAP_WORDS = 64
"""Shared by neighboring passages, so that a sequence of words lies in one of them as a whole."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Part of a text from character `start` to `end`, with its words in order."""

    start: int
    end: int
    words: tuple[str, ...]


def passages(text: str) -> Iterator[Passage]:
    """The text in passages that the index of either database can hold; none if it has no word."""
    if len(text) <= 2 * MAX_SAME_WORD:  # so short a text has less of everything than a passage may have
        found = words(text)
        if found:
            yield Passage(0, len(text), tuple(found))
        return
    placed = list(placed_words(text))
    first = 0
    while first < len(placed):
        last = _passage_end(placed, first)
        start = 0 if first == 0 else placed[first][1]
        end = len(text) if last == len(placed) else placed[last - 1][2]
        yield Passage(start, end, tuple(word for word, _, _ in placed[first:last]))
        if last == len(placed):
            return
        first = last - OVERLAP_WORDS


def _passage_end(placed: list[tuple[str, int, int]], first: int) -> int:
    counts: dict[str, int] = {}
    for index in range(first, min(first + MAX_PASSAGE_WORDS, len(placed))):
        word = placed[index][0]
        counts[word] = counts.get(word, 0) + 1
        if counts[word] > MAX_SAME_WORD:
            return index
    return min(first + MAX_PASSAGE_WORDS, len(placed))
