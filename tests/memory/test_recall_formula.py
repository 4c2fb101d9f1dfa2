"""The recall formula computed anew from its description, and what is taken for the same."""

from __future__ import annotations

import random
import struct
from math import log
from pathlib import Path

import pytest

from milepost.engine.lexical import tokens
from milepost.engine.recall import Claim, asks, identity, indexed_text, passages
from milepost.memory.semantic import IndexedMemory
from tests.memory.semantic_support import ANN, DAY, MINUTE, Embedding, file_store, said

WORDS = ("river", "bank", "boat", "fish", "water", "piano", "lesson", "teacher", "deploy", "server", "garden", "rain")


def _expected(texts: list[tuple[int, str]], query: str, cosines: list[float] | None) -> list[float]:
    """Scores by the text of `engine.recall`, one record after the other. `texts`: (time, text)."""
    indexed = [indexed_text(text, at=at, speaker="", captions=()) for at, text in texts]
    counts = [tokens(text) for text in indexed]

    def near(place: int, step: int) -> int | None:
        other = place
        for _ in range(abs(step)):
            following = other + (1 if step > 0 else -1)
            if not 0 <= following < len(texts) or abs(texts[other][0] - texts[following][0]) > 3 * 60 * MINUTE:
                return None
            other = following
        return other

    def shared(place: int, value: list[float]) -> float:
        total = value[place]
        for step, share in ((-1, 0.5), (-2, 0.2), (1, 0.1)):
            other = near(place, step)
            total += share * value[other] if other is not None else 0
        return total

    lengths = [shared(place, [float(len(found)) for found in counts]) for place in range(len(texts))]
    average = sum(lengths) / len(lengths)
    words = [0.0] * len(texts)
    for term in set(tokens(query)):
        own = [float(found.count(term)) for found in counts]
        having = sum(1 for count in own if count)
        weight = log(1 + (max(500, len(texts)) - having + 0.5) / (having + 0.5))
        for place in range(len(texts)):
            count = shared(place, own)
            if having and count:
                norm = 0.9 * (1 - 0.4 + 0.4 * lengths[place] / average)
                words[place] += weight * count * 1.9 / (count + norm)
    own = [value / (value + 10) for value in words]
    if cosines is not None:
        own = [0.7 * word + 0.3 * max(0.0, cosine) for word, cosine in zip(own, cosines, strict=True)]

    def context(place: int) -> float:
        def of(step: int) -> float:
            other = near(place, step)
            return 0.0 if other is None else own[other]

        before = near(place, -1)
        answer = 1.5 if before is not None and texts[before][1].endswith("?") else 1.0
        return 0.3 * max(of(-1) * answer, of(1)) + 0.2 * max(of(-2), of(2))

    return [min(1.0, own[place] + context(place)) for place in range(len(texts))]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("neural", [True, False])
async def test_scores_are_those_of_the_formula(tmp_path: Path, seed: int, neural: bool) -> None:
    chance = random.Random(seed)
    at = 0
    entries = []
    for number in range(60):
        at += chance.choice((MINUTE, 30 * MINUTE, DAY))
        text = " ".join(chance.choices(WORDS, k=chance.randint(1, 9))) + f" n{number}" + chance.choice((".", "?"))
        entries.append(said(number, text, at=at))
    embedder = Embedding(dimensions=8)
    embedder.neural = neural
    memory = IndexedMemory(file_store(tmp_path), embedder)
    await memory.add(ANN, entries)
    query = "Which boat is on the river, and who gives piano lessons?"
    recall = await memory.search(ANN, query, limit=100, min_score=0)
    indexed = [indexed_text(entry.text, at=entry.at, speaker="", captions=()) for entry in entries]
    vectors = [struct.unpack("<8f", vector) for vector in await embedder.embed([query, *indexed])]
    cosines = [sum(a * b for a, b in zip(vectors[0], vector, strict=True)) for vector in vectors[1:]]
    expected = _expected([(entry.at, entry.text) for entry in entries], query, cosines if neural else None)
    by_id = {entry.id: score for entry, score in zip(entries, expected, strict=True)}
    assert len(recall.items) == sum(1 for score in expected if score > 0)
    for item in recall.items:
        assert item.score == pytest.approx(1e6 * by_id[item.id], abs=3)
    scores = [item.score for item in recall.items]
    assert scores == sorted(scores, reverse=True)
    best = await memory.search(ANN, query, limit=7, min_score=0)
    assert best.items == recall.items[:7]
    await memory.close()


PARAPHRASES = [
    ("We deploy every Friday at 17:00.", "On Fridays at 17:00 the deployment reaches everybody."),
    ("The user drinks green tea in the morning.", "In the morning the user drinks green tea."),
    ("The test suite takes about ten minutes.", "Running the whole test suite needs around ten minutes."),
    ("The project uses PostgreSQL as its database.", "This project stores all of its data in PostgreSQL."),
]
CONTRASTS = [
    ("The user likes dark mode.", "The user hates dark mode."),
    ("The server runs in the staging cluster.", "The server runs in the production cluster."),
    ("Alice reports to Bob.", "Bob reports to Alice."),
    ("Alice will report to Bob at work.", "Bob will report to Alice at work and home."),
    ("The client sends data to the server.", "The server sends data to the client."),
    ("The old parser is slower than the new parser.", "The new parser is slower than the old parser."),
    ("Backups run before the migration.", "Backups run after the whole migration."),
    ("The user eats meat.", "The user doesn't eat any meat at all."),
    ("It takes 10 minutes.", "It takes 12 minutes in total."),
    ("The port is 8080 on the main host.", "The port is 8081 on the main host."),
    ("The user lives in Berlin near the river.", "The user lives in Munich near the park."),
    ("Deploy on Friday after approval by Ann.", "Deploy on Friday."),
]


@pytest.mark.parametrize(("earlier", "later"), PARAPHRASES)
def test_paraphrases_may_say_the_same(earlier: str, later: str) -> None:
    assert Claim.of(later).may_say(Claim.of(earlier))


@pytest.mark.parametrize(("earlier", "later"), CONTRASTS)
def test_contrasts_never_say_the_same(earlier: str, later: str) -> None:
    assert not Claim.of(later).may_say(Claim.of(earlier))


def test_identity() -> None:
    same = {identity("Ann", text) for text in ("It rains.", " it  RAINS", "It rains!", "It\nrains,")}
    assert len(same) == 1
    assert identity("Ann", "It rains?") not in same
    assert identity("Ben", "It rains.") not in same
    assert identity("", "!!") != identity("", "??")
    assert identity("", ".") != identity("", ",")


def test_questions_and_passages() -> None:
    assert all(asks(text) for text in ("Why?", 'He said "why?"', "Warum?\n", "なぜ？", "*Really?*"))
    assert not any(asks(text) for text in ("Why? Because.", "", "x"))
    assert passages("a b c") == ["a b c"]
    parts = passages(" ".join(map(str, range(500))))
    assert [len(part.split()) for part in parts] == [160, 160, 160, 116]
    assert {word for part in parts for word in part.split()} == {str(number) for number in range(500)}
    assert len(passages("x " * 100_000)) == 16


def test_the_indexed_text_is_dated() -> None:
    assert indexed_text("Hi.", at=1_683_554_160_000_000, speaker="Ann", captions=("a cat",)) == (
        "[8 May, 2023] Ann: Hi. [shares: a cat]"
    )
    assert indexed_text("Hi.", at=2**62, speaker="", captions=()) == "Hi."
