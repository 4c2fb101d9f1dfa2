"""Recall: what of a record is indexed and embedded, and when two records say the same. Pure.

The score of a record is made from its own text and from what was said around it, since an answer is often found by the
words of its question. With "before" and "after" the neighbors in the same conversation:

- A term counts as often as the record has it, + 0.5 of the times the record before has it, + 0.2 of the one before
  that, + 0.1 of the one after. BM25 (k1 0.9, b 0.4; see `engine.lexical`) over these counts gives B, and
  words = B / (B + 10).
- meaning = max(0, cosine) of the query's vector and the best of the record's.
- own = 0.7 * words + 0.3 * meaning; without a neural embedder own = words.
- score = (own + max(0.3 * own before, 0.3 * own after) + 0.2 * max(own of the second before, of the second after))
  / 1.65, where 0.3 of the record before is 0.45 if that one ends with a question: this one is likely its answer.

Neighboring texts in BM25 follow the idea of weighted fields in one term frequency (Robertson, Zaragoza and Taylor 2004,
"Simple BM25 extension to multiple weighted fields"); the rest was found by measuring, see docs/adr/021-recall.md.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from milepost.engine.lexical import tokens

INDEX_VERSION = 1
"""Rises whenever `indexed_text` changes what is indexed: stored terms of another version are made anew on reading."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The numbers of the formula; see the module's text."""

    term_before: float = 0.5
    term_second_before: float = 0.2
    term_after: float = 0.1
    half: float = 10.0
    words: float = 0.7
    meaning: float = 0.3
    neighbor: float = 0.3
    question: float = 1.5
    second_neighbor: float = 0.2

    @property
    def most(self) -> float:
        """The highest sum of shares, which makes the score 1."""
        return 1 + self.neighbor * max(1.0, self.question) + self.second_neighbor


WEIGHTS = Weights()
PAUSE_US = 3 * 3600 * 1_000_000
"""After a pause of three hours another conversation begins: what was said before is no neighbor."""

PASSAGE_WORDS = 160
"""Words embedded as one vector; MiniLM reads 254 word pieces."""
PASSAGE_OVERLAP = 32
MAX_PASSAGES = 16
"""What lies behind them is found by its words only."""

# --- what is indexed --------------------------------------------------------------------------------------------


def indexed_text(text: str, *, at: int, speaker: str, captions: Sequence[str]) -> str:
    """The text that is indexed and embedded: date, who said it, what, and what was attached."""
    day = _date(at)
    said = f"{speaker}: {text}" if speaker else text
    shown = "".join(f" [shares: {caption}]" for caption in captions if caption)
    return f"[{day}] {said}{shown}" if day else f"{said}{shown}"


def terms_of(text: str, *, at: int, speaker: str, captions: Sequence[str]) -> str:
    """Tokens of the indexed text, separated by spaces."""
    return " ".join(tokens(indexed_text(text, at=at, speaker=speaker, captions=captions)))


def _date(at: int) -> str:
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    except OverflowError:
        return ""
    return f"{moment.day} {_MONTHS[moment.month - 1]}, {moment.year}"


_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
"""Not from the locale, which would make other words of the same date."""


def passages(indexed: str) -> list[str]:
    """An indexed text in pieces that an embedder can read whole, with overlap; at least one."""
    pieces = indexed.split()
    if len(pieces) <= PASSAGE_WORDS:
        return [indexed]
    step = PASSAGE_WORDS - PASSAGE_OVERLAP
    starts = range(0, max(1, len(pieces) - PASSAGE_OVERLAP), step)
    return [" ".join(pieces[start : start + PASSAGE_WORDS]) for start in starts[:MAX_PASSAGES]]


def asks(text: str) -> bool:
    """Whether a text ends with a question."""
    return text.rstrip(" \t\r\n\"')*_»”’").endswith(("?", "？", "؟"))


# --- what says the same -----------------------------------------------------------------------------------------

NEAR_COSINE = 0.86
"""Below this two texts are not taken for the same; see docs/adr/021-recall.md for what it catches."""
MAX_NEAR_TOKENS = 48
"""Longer texts are never taken for nearly the same: a vector tells too little about them."""

_NEGATION = re.compile(
    r"\b(?:not?|never|none|nobody|nothing|neither|nor|cannot|without|stop(?:s|ped)?|quit|former(?:ly)?|any ?more"
    r"|no longer|used to)\b|n['’]t\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<=[^.!?:\s]\s)[A-ZÀ-Þ][\w'-]*")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")


def identity(speaker: str, text: str) -> str:
    """Equal for what is stored once: case, spacing, Unicode form and closing signs set aside. A SHA-256."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .!,;:")
    kept = plain or text
    return hashlib.sha256(f"{speaker.casefold()}\0{kept}".encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Claim:
    """What of a text must agree before a near vector may mean that it says the same.

    Attributes:
        tokens: its tokens in order.
        strict: numbers, negations and names within sentences, in order: a different one is a different fact.
    """

    tokens: tuple[str, ...]
    strict: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Claim:
        strict = [
            *_NUMBER.findall(text),
            *(["not"] if _NEGATION.search(text) else []),
            *(name.casefold() for name in _NAME.findall(text) if name not in ("I", "I'm", "I've", "I'd", "I'll")),
        ]
        return cls(tuple(tokens(text)), tuple(strict))

    def may_say(self, other: Claim) -> bool:
        """Whether this later text may say what `other` said, so that only their vectors have to decide.

        Texts that differ in one word at one place are a contrast more often than a paraphrase ("likes" and "hates"),
        and a text that leaves something out does not replace the fuller one.
        """
        if self.strict != other.strict or not 0 < len(self.tokens) <= MAX_NEAR_TOKENS:
            return False
        if not 0 < len(other.tokens) <= MAX_NEAR_TOKENS:
            return False
        mine, theirs = set(self.tokens), set(other.tokens)
        if mine < theirs:
            return False
        if len(self.tokens) == len(other.tokens):
            return self.tokens == other.tokens or sum(map(_differ, self.tokens, other.tokens)) != 1
        return True


def _differ(one: str, other: str) -> bool:
    return one != other
