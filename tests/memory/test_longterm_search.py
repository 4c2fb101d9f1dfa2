"""Searching long-term memory: scores, ties, filters and bounds against numbers worked out apart from the code."""

from __future__ import annotations

import random
from typing import Any

import pytest

from milepost.domain.embeddings import EmbeddingSpace
from milepost.domain.errors import InvalidInput, PayloadTooLarge
from milepost.domain.longterm import Found, SearchMode
from milepost.ports.ledger import Ledger
from milepost.services.longterm.service import SearchRequest
from tests.memory.longterm import Bench, Known, Plain, bench, slow_search

WORDS = ["red", "green", "blue", "car", "bus", "tram", "stop", "park", "road", "lamp", "wind", "rain", "snow", "fog"]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """The stores are tested on both databases with their own suite; here the second one is for the slow run."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


def found(result: Found) -> list[tuple[str, int]]:
    return [(hit.record.key, hit.score) for hit in result.hits]


async def search(bench: Bench, query: str, mode: str = "hybrid", limit: int = 10, **filters: Any) -> Found:
    return await bench.memory.search("n", SearchRequest(query, SearchMode(mode), limit, filters))


@pytest.fixture
def four(ledger: Ledger) -> Bench:
    """Vectors: the query is (1, 0); a (0.6, 0.8), b (1, 0), c (-1, 0), d has none."""
    table = {
        "release notes": (1, 0),
        "concise release notes please": (0.6, 0.8),
        "something else": (1, 0),
        "old notes": (-1, 0),
    }
    return bench(ledger, Known(table=table))


async def test_scores_by_hand(four: Bench) -> None:
    await four.put("a", "concise release notes please")
    await four.put("b", "something else")
    await four.put("c", "old notes")
    four.embedders.all[0].failing = True
    kept = await four.put("d", "release")
    assert kept.embedding_error == "The embedder is away. Wait." and kept.record.space is None
    four.embedders.all[0].failing = False

    text = await search(four, "release notes", "text")
    assert found(text) == [("a", 1_000_000), ("c", 500_000), ("d", 500_000)]
    vector = await search(four, "release notes", "vector")
    assert found(vector) == [("b", 1_000_000), ("a", 600_000)]
    hybrid = await search(four, "release notes")
    assert found(hybrid) == [("a", 800_000), ("b", 500_000), ("c", 250_000), ("d", 250_000)]
    assert [(hit.text, hit.vector) for hit in hybrid.hits] == [
        (1_000_000, 600_000),
        (0, 1_000_000),
        (500_000, 0),
        (500_000, None),
    ]
    assert (hybrid.exact, hybrid.candidates, hybrid.without_vector) == (True, 4, 1)
    assert hybrid.space == EmbeddingSpace("known", 8)
    # 9 tokens in 4 records: 2.25 each. "release" and "note" are in 2 of 4: ln(1 + 2.5 / 2.5) = 0.6931472.
    # a: 4 tokens, norm 0.6 + 0.4 * 4 / 2.25 = 1.3111111, 2 * 0.6931472 * 1.9 / (1 + 0.9 * 1.3111111) = 1.2082382,
    # and 1.2082382 / 11.2082382 = 0.107799; d: 0.7746939 / 10.7746939; c: 0.7080536 / 10.7080536
    bm25 = await search(four, "release notes", "bm25")
    assert found(bm25) == [("a", 107_799), ("d", 71_899), ("c", 66_123)]
    best = await search(four, "release notes", "best")
    assert found(best) == [("b", 400_000), ("a", 304_679), ("d", 43_140), ("c", 39_674)]
    assert [(hit.bm25, hit.vector) for hit in best.hits][:2] == [(0, 1_000_000), (107_799, 600_000)]


def records(count: int, seed: int) -> list[Plain]:
    dice = random.Random(seed)
    return [
        Plain(
            key=f"key{number:04}",
            words=tuple(dice.choices(WORDS, k=dice.randint(1, 12))),
            vector=None,
            metadata={"team": dice.choice(["docs", "core"]), "priority": dice.randint(1, 3)},
        )
        for number in range(count)
    ]


async def filled(bench: Bench, plain: list[Plain]) -> list[Plain]:
    embedder = bench.embedders.all[0]
    for each in plain:
        await bench.put(each.key, " ".join(each.words), metadata=dict(each.metadata))
    return [Plain(each.key, each.words, embedder.vector(" ".join(each.words)), each.metadata) for each in plain]


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_mode_finds_what_a_slow_search_finds(sqlite_ledger: Ledger, seed: int) -> None:
    bench_ = bench(sqlite_ledger, Known(dimensions=24))
    plain = await filled(bench_, records(150, seed))
    dice = random.Random(seed)
    for _ in range(6):
        words = dice.choices(WORDS, k=dice.randint(1, 4))
        vector = bench_.embedders.all[0].vector(" ".join(words))
        for mode in SearchMode:
            for filters in ({}, {"team": "docs"}, {"team": "docs", "priority": 2.0}):
                limit = dice.choice([1, 3, 10, 100])
                got = await search(bench_, " ".join(words), mode.value, limit, **filters)
                assert found(got) == slow_search(plain, words, vector, mode.value, filters)[:limit]
                assert got.exact


async def test_above_the_exact_limit_scores_stay_exact(sqlite_ledger: Ledger) -> None:
    """60 candidates are looked at one by one here, so 200 are searched approximately, and 60 of a filter are not."""
    bench_ = bench(sqlite_ledger, Known(dimensions=24), exact_candidates=60)
    plain = await filled(bench_, records(200, 5))
    dice = random.Random(5)
    for _ in range(4):
        words = dice.choices(WORDS, k=3)
        vector = bench_.embedders.all[0].vector(" ".join(words))
        for mode in SearchMode:
            by_vector = mode in (SearchMode.VECTOR, SearchMode.HYBRID, SearchMode.BEST)
            whole = await search(bench_, " ".join(words), mode.value)
            assert whole.exact is not by_vector
            # As many are asked of the approximate index as there are records here, so it misses none.
            assert found(whole) == slow_search(plain, words, vector, mode.value, {})[:10]
            some = await search(bench_, " ".join(words), mode.value, team="docs", priority=1)
            assert some.exact and some.candidates < 60
            expected = slow_search(plain, words, vector, mode.value, {"team": "docs", "priority": 1})
            assert found(some) == expected[:10]


async def test_equal_scores_are_ordered_by_key_also_at_the_cut(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    keys = [f"k{number}" for number in range(130)]
    mixed = keys.copy()
    random.Random(3).shuffle(mixed)
    for key in mixed:
        await bench_.put(key, "the same text")
    for mode in SearchMode:
        for limit in (7, 100):
            got = await search(bench_, "same text", mode.value, limit)
            assert [hit.record.key for hit in got.hits] == sorted(keys)[:limit], mode
            assert len({hit.score for hit in got.hits}) == 1


async def test_the_index_follows_writes_of_others(ledger: Ledger) -> None:
    one, other = bench(ledger), bench(ledger)
    await one.put("a", "red car")
    assert found(await search(other, "car", "text")) == [("a", 1_000_000)]
    await one.put("a", "red bus")
    await one.put("b", "car", metadata={"x": None})
    assert found(await search(other, "car", "text")) == [("b", 1_000_000)]
    assert found(await search(other, "bus", "text")) == [("a", 1_000_000)]
    await one.memory.delete("n", "b")
    assert found(await search(other, "car", "text")) == []
    # So many dead rows that the index is made anew.
    for number in range(30):
        await one.put("a", f"bus {number}")
    assert found(await search(other, "bus", "text")) == [("a", 1_000_000)]


async def test_metadata_is_compared_as_json(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    values: dict[str, Any] = {
        "int": 2,
        "text": "2",
        "true": True,
        "null": None,
        "list": [1, {"a": 2}],
        "long": "x" * 5_000,
    }
    for name, value in values.items():
        await bench_.put(name, "car", metadata={"v": value, "name": name})
    for name, value in values.items():
        assert [hit.record.key for hit in (await search(bench_, "car", v=value)).hits] == [name]
    assert [hit.record.key for hit in (await search(bench_, "car", v=2.0)).hits] == ["int"]
    assert [hit.record.key for hit in (await search(bench_, "car", v=[1.0, {"a": 2}])).hits] == ["list"]
    assert (await search(bench_, "car", v=1)).hits == () == (await search(bench_, "car", other=1)).hits
    assert (await search(bench_, "car", v=2, name="text")).candidates == 0


async def test_bounds(ledger: Ledger) -> None:
    bench_ = bench(ledger)
    await bench_.put("a", "car")
    assert found(await search(bench_, "car " + "x" * 65_500, "text"))[0][0] == "a"
    with pytest.raises(PayloadTooLarge, match="65537 bytes; at most 65536"):
        await search(bench_, "x" * 65_537)
    for limit in (0, 101):
        with pytest.raises(InvalidInput, match="1 to 100 results"):
            await search(bench_, "car", limit=limit)
    with pytest.raises(InvalidInput, match="at most 64 conditions"):
        await search(bench_, "car", **{f"n{number}": 1 for number in range(65)})
    assert (await search(bench_, "?!")).hits == ()
    assert (await search(bench_, "car\ud800")).hits
    nowhere = await bench_.memory.search("nowhere", SearchRequest("car"))
    assert (nowhere.hits, nowhere.candidates) == ((), 0)
