"""Tokens, text and vector scores and the lexical hash, against numbers worked out apart from the code."""

from __future__ import annotations

import hashlib
import math
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.embedders.lexical import LexicalHash, hash_vector
from milepost.engine.lexical import (
    Statistics,
    best_score,
    bm25,
    bm25_score,
    cosine,
    hybrid_score,
    text_score,
    tokens,
    vector_score,
)


def packed(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_tokens_are_stems_without_stop_words() -> None:
    assert tokens("The customers' release-notes were running late") == ["custom", "releas", "note", "run", "late"]
    assert tokens("I don't know what you're saying") == ["know", "say"]
    assert tokens("Café, CAFE\u0301 and größer") == ["cafe", "cafe", "grosser"]
    assert tokens("東京 user_id=42") == ["東", "京", "user", "id", "42"]
    assert tokens("\x1b[31merror\x1b[0m \ud800") == ["error"]
    assert tokens("to be or not to be") == ["to", "be", "or", "not", "to", "be"]
    assert tokens("... --- ...") == []


def test_tokens_are_the_same_on_every_thread() -> None:
    texts = [f"nationalities{n} organizing generously relational{n}" for n in range(400)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokens, texts)) == [
            [f"nationalities{n}", "organiz", "generous", f"relational{n}"] for n in range(400)
        ]


def test_text_scores() -> None:
    query = tokens("concise release notes, concise notes, please")  # concis releas note pleas
    assert text_score(query, tokens("Customer prefers concise release notes")) == 750_000
    assert text_score(query, tokens("One note")) == 250_000
    assert text_score(tokens("red green blue"), tokens("blue bicycle")) == 333_333  # a third, rounded down
    assert text_score(tokens("red green blue"), tokens("blue red")) == 666_666
    assert text_score(query, tokens("nothing of it")) == 0
    assert text_score(tokens("?!"), tokens("anything")) == 0
    assert text_score(query, tokens("please note: concise release")) == 1_000_000


def test_vector_scores() -> None:
    assert vector_score(cosine(packed(3, 4), packed(4, 3))) == 960_000  # 24 / 25
    assert vector_score(cosine(packed(1, 1), packed(1, 0))) == 707_107  # 1 / sqrt(2) = 0.70710678
    assert vector_score(cosine(packed(1, 0), packed(-1, 0))) == 0
    assert vector_score(cosine(packed(0, 0), packed(1, 0))) == 0
    assert vector_score(cosine(packed(0.1, 0.7, 0.3), packed(0.1, 0.7, 0.3))) == 1_000_000
    with pytest.raises(ValueError, match="lengths"):
        cosine(packed(1), packed(1, 2))


def test_hybrid_scores() -> None:
    assert hybrid_score(750_000, 960_000) == 855_000
    assert hybrid_score(333_333, 0) == 166_666
    assert hybrid_score(333_333, None) == 166_666
    assert hybrid_score(0, 707_107) == 353_553


def test_bm25_by_hand() -> None:
    texts = [["red", "car"], ["red", "red", "bus", "stop"], ["blue", "car", "park"]]
    statistics = Statistics.of(["red", "car", "red"], texts)
    assert (statistics.texts, statistics.tokens) == (3, 9)
    assert dict(statistics.containing) == {"red": 2, "car": 2}
    # idf = ln(1 + 1.5 / 2.5) = 0.4700036; average length 3
    # first: length 2, norm .6 + .4 * 2/3 = 0.8666667: each token 1.9 / 1.78 = 1.0674157
    assert bm25(["red", "car"], Counter(texts[0]), 2, statistics) == pytest.approx(2 * 0.4700036 * 1.0674157, rel=1e-6)
    # second: length 4, norm .6 + .4 * 4/3 = 1.1333333: 2 * 1.9 / (2 + 1.02) = 1.2582781
    assert bm25(["red", "car"], Counter(texts[1]), 4, statistics) == pytest.approx(0.4700036 * 1.2582781, rel=1e-6)
    assert bm25(["green"], Counter(texts[0]), 2, statistics) == 0


def test_best_scores() -> None:
    assert bm25_score(10) == 500_000
    assert bm25_score(0) == 0
    assert best_score(10, 0.5) == 500_000  # 0.6 * 0.5 + 0.4 * 0.5
    assert best_score(10, -0.5) == 300_000
    assert best_score(10, None) == 300_000
    assert best_score(2.5, 1.0) == 520_000  # 0.6 * 0.2 + 0.4
    assert best_score(10, 0.9, neural=False) == 500_000


def naive_hash(words: list[str], dimensions: int) -> list[float]:
    sums = [0.0] * dimensions
    for word in words:
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        number = sum(byte * 256**index for index, byte in enumerate(digest))
        sums[number // 2 % dimensions] += 1 - 2 * (number % 2)
    length = math.hypot(*sums)
    return [value / length for value in sums]


@pytest.mark.parametrize("dimensions", [8, 64, 1000, 4096])
async def test_lexical_hash(dimensions: int) -> None:
    embedder = LexicalHash(dimensions)
    assert embedder.space.dimensions == dimensions
    vector, empty = await embedder.embed(["Customers prefer concise release notes, concise ones", "--"])
    words = ["custom", "prefer", "concis", "releas", "note", "concis", "one"]
    assert list(struct.unpack(f"<{dimensions}f", vector)) == pytest.approx(naive_hash(words, dimensions), abs=1e-7)
    assert empty == bytes(4 * dimensions)


def test_lexical_hash_is_the_same_for_ever() -> None:
    """Stored vectors are compared with new ones, so the bytes are a format."""
    # BLAKE2b-64 of "red" is 0de917af2f0a48a3: odd, so minus, and its half modulo 8 is 6; -1.0 is 000080bf
    assert hash_vector("red", 8).hex() == "00000000" * 6 + "000080bf" + "00000000"
    assert hash_vector("", 8) == bytes(32)


@given(st.lists(st.sampled_from(["red", "green", "blue", "car", "bus", "stop"]), min_size=1, max_size=12), st.randoms())
def test_order_of_words_changes_no_score(some: list[str], random) -> None:  # type: ignore[no-untyped-def]
    mixed = some.copy()
    random.shuffle(mixed)
    query = ["red", "car", "tram"]
    assert text_score(query, some) == text_score(query, mixed)
    assert hash_vector(" ".join(some), 64) == hash_vector(" ".join(mixed), 64)
    assert 0 <= text_score(query, some) <= 1_000_000
