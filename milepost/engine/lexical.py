"""Scores of texts and vectors against a query. Pure; the same input gives the same integer everywhere.

Tokens are the words of `engine.words` without stop words, reduced to their stem by the Snowball English stemmer
("Porter2", https://snowballstem.org/algorithms/english/stemmer.html); words with other letters than a-z stay as they
are. Scores are integers in millionths, 0 to 1,000,000.

- text: distinct tokens of the query that the text has / distinct tokens of the query, rounded down.
- vector: cosine of the two vectors, negative ones 0, rounded to the nearest millionth.
- hybrid: mean of both, rounded down; without a vector half of the text score.
- bm25: Okapi BM25 (Robertson and Zaragoza 2009, section 3) with k1 0.9 and b 0.4, brought to 0..1 by b / (b + 10).
- best: 0.6 of bm25 + 0.4 of the cosine, which beat rank fusion and every part alone when they were measured.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import fsum, log, sqrt
from operator import mul
from sys import byteorder
from typing import Any

from milepost.engine.words import words

TOKENS_VERSION = 1
"""Rises whenever the tokens of a text change: what was counted with other tokens must be counted anew."""

ONE = 1_000_000
"""The score 1."""

K1 = 0.9
B = 0.4
BM25_HALF = 10.0
"""A BM25 of this is half of the full score."""
BM25_SHARE = 0.6
VECTOR_SHARE = 0.4

_ENGLISH = """
a about above after again against all am an and any are aren as at be because been before being below between both but
by can cannot could couldn d did didn do does doesn doing don down during each few for from further had hadn has hasn
have haven having he her here hers herself him himself his how i if in into is isn it its itself just ll m me more most
mustn my myself no nor not now of off on once only or other ought our ours ourselves out over own re s same shan she
should shouldn so some such t than that the their theirs them themselves then there these they this those through to
too under until up ve very was wasn we were weren what when where which while who whom why will with won would wouldn
you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_ENGLISH.split())
"""English words that tell nothing about what a text is of, and what is left of them by an apostrophe."""


def tokens(text: str) -> list[str]:
    """The tokens of a text in order. A text of nothing but stop words keeps them all."""
    found = words(text)
    kept = [word for word in found if word not in STOP_WORDS]
    return [_stem(word) for word in kept or found]


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    if not word.isascii() or len(word) < 3:
        return word
    # One for each word: a stemmer keeps the word it works on, and texts are read on several threads.
    stemmed: str = _stemmer()().stemWord(word)
    return stemmed


@cache
def _stemmer() -> Any:
    from snowballstemmer.english_stemmer import EnglishStemmer  # reads 34 languages, so not before it is needed

    return EnglishStemmer


# --- text -------------------------------------------------------------------------------------------------------


def text_score(query: Collection[str], text: Collection[str]) -> int:
    """Share of the query's distinct tokens that are in the text; 0 for a query without any."""
    wanted = set(query)
    if not wanted:
        return 0
    found = wanted & (text if isinstance(text, (set, frozenset)) else set(text))
    return ONE * len(found) // len(wanted)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What BM25 has to know of the texts that are searched.

    Attributes:
        texts: how many there are.
        tokens: how many tokens they have together.
        containing: in how many of them each token of the query is.
    """

    texts: int
    tokens: int
    containing: Mapping[str, int]

    @classmethod
    def of(cls, query: Collection[str], texts: Sequence[Sequence[str]]) -> Statistics:
        """The statistics of texts given by their tokens."""
        wanted = set(query)
        containing = Counter(token for text in texts for token in wanted & set(text))
        return cls(len(texts), sum(map(len, texts)), containing)


def inverse_frequency(texts: int, containing: int) -> float:
    """Weight of a token that `containing` of `texts` have: ln(1 + (texts - containing + 0.5) / (containing + 0.5))."""
    return log(1 + (texts - containing + 0.5) / (containing + 0.5))


def saturation(count: int, length: int, average: float) -> float:
    """BM25's weight of `count` occurrences in a text of `length` tokens, where texts have `average` tokens."""
    norm = 1 - B + B * length / average if average > 0 else 1.0
    return count * (K1 + 1) / (count + K1 * norm)


def bm25(query: Collection[str], counts: Mapping[str, int], length: int, statistics: Statistics) -> float:
    """BM25 of one text for a query.

    Args:
        query: tokens; one that is there twice counts once.
        counts: how often the text has a token; only those of the query are asked for.
        length: tokens of the text.
        statistics: of all texts that are searched.
    """
    average = statistics.tokens / statistics.texts if statistics.texts else 0.0
    return fsum(
        inverse_frequency(statistics.texts, statistics.containing.get(token, 0))
        * saturation(counts[token], length, average)
        for token in set(query)
        if counts.get(token, 0) > 0
    )


def bm25_part(value: float) -> float:
    """BM25, which has no upper end, as a number from 0 to 1."""
    return value / (value + BM25_HALF) if value > 0 else 0.0


def bm25_score(value: float) -> int:
    """`bm25_part` in millionths."""
    return round(ONE * bm25_part(value))


# --- vectors ----------------------------------------------------------------------------------------------------


def floats(vector: bytes) -> array[float]:
    """The components of a vector of little-endian singles."""
    numbers = array("f", vector)
    if byteorder == "big":
        numbers.byteswap()
    return numbers


def cosine(one: bytes, other: bytes) -> float:
    """Cosine of two vectors of the same length, 0 where one of them is zero.

    Products of singles are exact in a double and their sum is rounded once, so the order of the components, the
    processor and its vector unit have no say in the result.
    """
    left, right = floats(one), floats(other)
    if len(left) != len(right):
        raise ValueError("Vectors of different lengths have no cosine.")
    size = sqrt(fsum(map(mul, left, left)) * fsum(map(mul, right, right)))
    return fsum(map(mul, left, right)) / size if size > 0 else 0.0


def vector_score(value: float) -> int:
    """A cosine in millionths, clamped to 0..1."""
    return round(ONE * min(1.0, max(0.0, value)))


# --- both -------------------------------------------------------------------------------------------------------


def hybrid_score(text: int, vector: int | None) -> int:
    """Mean of a text and a vector score, rounded down; a text without a vector keeps half of its text score."""
    return (text + (vector or 0)) // 2


def best_score(bm25_value: float, cosine_value: float | None, *, neural: bool = True) -> int:
    """The recall formula: 0.6 * bm25 / (bm25 + 10) + 0.4 * max(0, cosine), in millionths.

    Args:
        bm25_value: BM25 of the text.
        cosine_value: None for a record without a vector, which keeps its share of the text.
        neural: False if the vectors know words only; then the text carries the whole score, since such vectors
            lower the quality of what is found.
    """
    text = bm25_part(bm25_value)
    if not neural:
        return round(ONE * text)
    near = min(1.0, max(0.0, cosine_value or 0.0))
    return round(ONE * (BM25_SHARE * text + VECTOR_SHARE * near))
