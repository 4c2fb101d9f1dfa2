"""Recall: what of a record is indexed and embedded, and when two records say the same. Pure.

The score of a record is made from its own text and from what was said around it, since an answer is often found by the
words of its question. With "before" and "after" the neighbors in the same conversation:

- In the weight of a term, ln(1 + (N - n + 0.5) / (n + 0.5)) for n of N records that have it, N is at least 500: what
  was said once in a young memory is not common for that.
- A term counts as often as the record has it, + 0.5 of the times the record before has it, + 0.2 of the one before
  that, + 0.1 of the one after. BM25 (k1 0.9, b 0.4; see `engine.lexical`) over these counts gives B, and
  words = B / (B + 10).
- meaning = max(0, cosine) of the query's vector and the best of the record's.
- own = 0.7 * words + 0.3 * meaning; without a neural embedder own = words.
- score = own + max(0.3 * own before, 0.3 * own after) + 0.2 * max(own of the second before, of the second after), shown
  as at most 1; the 0.3 of the record before is 0.45 if that one ends with a question: this one is likely its answer.

Neighboring texts in BM25 follow the idea of weighted fields in one term frequency (Robertson, Zaragoza and Taylor 2004,
"Simple BM25 extension to multiple weighted fields"); the rest was found by measuring, see docs/adr/024-recall.md.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import ne

from milepost.engine.lexical import TOKENS_VERSION, tokens
from milepost.engine.words import words

_TEXT_VERSION = 1
"""Rises whenever `indexed_text` changes."""
TERMS_VERSION = 1000 * _TEXT_VERSION + TOKENS_VERSION
"""Stored terms of another version are made anew when they are read."""


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
    least_records: int = 500
    second_neighbor: float = 0.2


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
    """The text whose words are indexed: date, who said it, what, and what was attached."""
    day = _date(at)
    said = f"{speaker}: {text}" if speaker else text
    shown = "".join(f" [shares: {caption}]" for caption in captions if caption)
    return f"[{day}] {said}{shown}" if day else f"{said}{shown}"


def embedded_text(text: str, *, fact: bool, at: int, speaker: str, captions: Sequence[str]) -> str:
    """The text that is embedded. A fact's is without date and speaker, which would bring all facts near each other."""
    return text if fact else indexed_text(text, at=at, speaker=speaker, captions=captions)


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


def passages(whole: str) -> list[str]:
    """A text in pieces that an embedder can read whole, with overlap; at least one."""
    pieces = whole.split()
    if len(pieces) <= PASSAGE_WORDS:
        return [whole]
    step = PASSAGE_WORDS - PASSAGE_OVERLAP
    starts = range(0, max(1, len(pieces) - PASSAGE_OVERLAP), step)
    return [" ".join(pieces[start : start + PASSAGE_WORDS]) for start in starts[:MAX_PASSAGES]]


def asks(text: str) -> bool:
    """Whether a text ends with a question."""
    return text.rstrip(" \t\r\n\"')*_»”’").endswith(("?", "？", "؟"))


# --- what says the same -----------------------------------------------------------------------------------------

NEAR_COSINE = 0.84
"""Facts whose vectors are further apart are not taken for the same; docs/adr/024-recall.md says what it catches."""
MAX_NEAR_TOKENS = 48
"""Longer texts are never taken for nearly the same: a vector tells too little about them."""

_NEGATION = re.compile(
    r"\b(?:not?|never|none|nobody|nothing|neither|nor|cannot|without|stop(?:s|ped)?|quit|former(?:ly)?|any ?more"
    r"|no longer|used to)\b|n['’]t\b",
    re.IGNORECASE,
)
_DIRECTION = re.compile(
    r"\b(?:before|after|above|below|over|under|up|down|off|out|more|less|most|least|until|since)\b", re.IGNORECASE
)
_NAME = re.compile(r"(?<=[^.!?:\s]\s)[A-ZÀ-Þ][\w-]*")
_FIRST_PERSON = "i"
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")


def identity(speaker: str, text: str) -> str:
    """Equal for what is stored once: case, spacing, Unicode form and closing signs set aside. A SHA-256."""
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(" .!,;:")
    kept = plain or text
    return hashlib.sha256(f"{speaker.casefold()}\0{kept}".encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Claim:
    """What of two facts must agree before near vectors may mean that they say the same.

    A small model puts "likes" beside "hates" and does not see who did what to whom, so its word alone is not enough.

    Attributes:
        tokens: content words in order.
        spoken: all words in order, reduced to their stems.
        names: words within sentences that begin with a capital.
        strict: numbers, words of direction and whether something is denied.
    """

    tokens: tuple[str, ...]
    spoken: tuple[str, ...]
    names: frozenset[str]
    strict: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Claim:
        """The claim that a text makes."""
        strict = sorted([*_NUMBER.findall(text), *(word.lower() for word in _DIRECTION.findall(text))])
        names = {stem for name in _NAME.findall(text) for stem in _stems(name)} - {_FIRST_PERSON}
        denies = "not" if _NEGATION.search(text) else ""
        return cls(tuple(tokens(text)), _stems(text), frozenset(names), (denies, *strict))

    def may_say(self, other: Claim) -> bool:
        """Whether this later text may say what `other` said, so that their vectors have to decide.

        Not if numbers, directions or denials differ, or the names or their order; nor if one word stands in the place
        of another, or the same words come in another order (that is a contrast more often than a paraphrase); nor if
        this text leaves something out, since the fuller one must stay.
        """
        both = (self.tokens, other.tokens)
        if self.strict != other.strict or not all(0 < len(found) <= MAX_NEAR_TOKENS for found in both):
            return False
        names = self.names | other.names
        if [word for word in self.spoken if word in names] != [word for word in other.spoken if word in names]:
            return False
        if set(self.tokens) < set(other.tokens):
            return False
        if Counter(self.tokens) == Counter(other.tokens):
            return _rotated(*both)
        return len(self.tokens) != len(other.tokens) or sum(map(ne, *both)) != 1


def _stems(text: str) -> tuple[str, ...]:
    return tuple(stem for word in words(text) for stem in tokens(word))


def _rotated(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether the words are the same but for where the text begins: "On Friday we ship", "We ship on Friday"."""
    return any(one[start:] + one[:start] == other for start in range(len(one)))
