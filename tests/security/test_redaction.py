"""Secrets are hidden in every encoding that is looked for, in pieces too, and nothing else is touched."""

from __future__ import annotations

import base64
import html
import itertools
import json
import re
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.security.redaction import HIDDEN, MAX_SECRETS, MIN_CERTAIN, Redactor, StreamRedactor
from tests.security.canaries import canary, leaks

SECRET = canary("key")
OTHER = "prefix-of-" + SECRET

ENCODINGS = {
    "raw": SECRET,
    "url": quote(SECRET, safe=""),
    "url, lower case": re.sub("%..", lambda match: match.group().lower(), quote(SECRET, safe="")),
    "form": quote_plus(SECRET),
    "json": json.dumps(SECRET),
    "json in json": json.dumps(json.dumps(SECRET)),
    "repr": repr(SECRET),
    "repr in json": json.dumps(repr([(b"name", SECRET.encode())])),
    "html": html.escape(SECRET),
    "hex": SECRET.encode().hex(),
    "HEX": SECRET.encode().hex().upper(),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64 after one": base64.b64encode(b"u" + SECRET.encode()).decode(),
    "base64 after two": base64.b64encode(b"u:" + SECRET.encode() + b"!").decode(),
    "base64 for URLs": base64.urlsafe_b64encode(b"user:" + SECRET.encode()).decode(),
}

secrets_ = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=MIN_CERTAIN, max_size=40)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_control_finds_a_canary_in_each_encoding(encoding: str) -> None:
    text = f"before {ENCODINGS[encoding]} after"
    assert leaks({"here": text.encode()}, {"key": SECRET}) == ["here: key"]


def test_the_control_looks_into_what_is_encoded_twice() -> None:
    payload = base64.b64encode(json.dumps({"a": quote(SECRET)}).encode())
    assert leaks({"here": b'{"data":"' + payload + b'"}'}, {"key": SECRET})
    assert leaks({"here": SECRET.encode()[:25]}, {"key": SECRET}), "a long piece counts as the whole"
    assert leaks({"here": SECRET.encode()[:19]}, {"key": SECRET}) == []


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_each_encoding_is_hidden_whole_and_in_pieces(encoding: str) -> None:
    redact = Redactor([SECRET])
    text = f"before {ENCODINGS[encoding]} after"
    hidden = redact.certain(text)
    assert leaks({"here": hidden.encode()}, {"key": SECRET}) == []
    assert hidden.startswith("before ") and hidden.endswith(" after") and HIDDEN in hidden
    assert redact.data(text.encode()) == hidden.encode()
    for size in (1, 2, 3, 7, len(text)):
        stream = StreamRedactor(redact)
        pieces = [stream.feed(text[start : start + size]) for start in range(0, len(text), size)]
        assert "".join(pieces) + stream.end() == hidden


@given(secrets_, st.text(max_size=30), st.text(max_size=30), st.lists(st.integers(0, 100), max_size=8))
def test_wherever_a_text_is_cut_into_pieces_the_secret_is_hidden(
    secret: str, before: str, after: str, cuts: list[int]
) -> None:
    redact = Redactor([secret])
    text = before + secret + after
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    stream = StreamRedactor(redact)
    shown = "".join(stream.feed(text[start:end]) for start, end in itertools.pairwise(places)) + stream.end()
    assert secret not in shown


@given(st.text(max_size=200), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_other_text_comes_through_unchanged(text: str, sizes: list[int]) -> None:
    stream = StreamRedactor(Redactor([SECRET]))
    pieces, position, turn = [], 0, 0
    while position < len(text):
        size = sizes[turn % len(sizes)]
        pieces.append(stream.feed(text[position : position + size]))
        position, turn = position + size, turn + 1
    assert "".join(pieces) + stream.end() == text


def test_what_only_begins_like_a_secret_is_shown_late_but_whole() -> None:
    stream = StreamRedactor(Redactor([SECRET]))
    beginning = SECRET[:8]
    assert stream.feed("the " + beginning) == "the "
    assert stream.feed("!") == beginning + "!"
    assert stream.feed("the " + beginning) + stream.end() == "the " + beginning
    assert stream.feed(SECRET[:-1]) + stream.end() == HIDDEN, "all but one character is no small piece"


def test_of_two_secrets_the_longer_leaves_no_rest() -> None:
    short, long = SECRET, SECRET + "-and-more"
    redact = Redactor([short, long, OTHER])
    for text in (long, OTHER, OTHER + "-and-more"):
        assert "more" not in redact.certain(long)
        stream = StreamRedactor(redact)
        shown = "".join(stream.feed(character) for character in text) + stream.end()
        assert SECRET[:4] not in shown and "prefix-of" not in shown


def test_the_words_of_a_header_count_alone() -> None:
    redact = Redactor(
        [f"Bearer {SECRET}", "session=abcdefghijklmnop; theme=dark", "Basic " + _basic("me", "pass-word-1234")]
    )
    assert redact(f"your key {SECRET} is wrong") == f"your key {HIDDEN} is wrong"
    assert "abcdefghijklmnop" not in redact("cookie abcdefghijklmnop")
    assert "pass-word" not in redact("password pass-word-1234 refused")
    assert redact.certain("a dark theme") == "a dark theme"


def test_each_line_of_a_key_file_counts_alone() -> None:
    lines = [base64.b64encode(bytes([n]) * 48).decode() for n in range(30)]
    redact = Redactor(["-----BEGIN KEY-----\n" + "\n".join(lines) + "\n-----END KEY-----"])
    assert lines[7] not in redact.certain(f"near {lines[7]}?")


def test_placeholders_are_hidden_in_errors_only_and_as_words() -> None:
    redact = Redactor(["none"])
    assert redact("none nonexistent") == f"{HIDDEN} nonexistent"
    assert redact.certain("none nonexistent") == "none nonexistent"


def test_a_cut_leaves_no_half_secret() -> None:
    redact = Redactor([SECRET])
    text = "x" * 50 + SECRET + "y" * 50
    for limit in range(51, 50 + len(SECRET)):
        assert SECRET[:MIN_CERTAIN] not in redact.cut(text, limit)
    assert redact.cut("short", 10) == "short"


def test_what_is_learned_later_is_hidden_from_then_on_and_a_bound_holds() -> None:
    redact = Redactor()
    stream = StreamRedactor(redact)
    assert stream.feed("open ") == "open "
    redact.learn(SECRET)
    assert stream.feed(SECRET) == HIDDEN
    redact.learn(*(f"value-number-{number:06}" for number in range(MAX_SECRETS)))
    assert redact.certain(SECRET) == SECRET, "the oldest is forgotten"


def _basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()
